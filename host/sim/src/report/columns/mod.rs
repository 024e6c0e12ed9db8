//! Columns of the text and HTML tables, and of summaries. A row is a contender with its results, one per seed, or a named figure.
//!
//! All contenders get the same requests with a seed, so their runs with it are a pair: what differs between two is
//! estimated from the differences within the pairs, which vary far less than the runs of each.

mod row;
mod tables;
#[cfg(test)]
mod tests;

use super::interval::Estimate;
pub(super) use row::{Row, compared, contenders};
pub(super) use tables::{MORE, SUSTAINED, TABLES, TENANT, tables_of};

/// A quantity in a table.
pub(super) struct Column<T> {
    pub name: &'static str,
    digits: usize,
    /// `None` if there is no such value, such as the mean of nothing.
    read: fn(&T) -> Option<f64>,
    better: Better,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    Less,
    More,
    Neither,
}

const fn column<T>(
    name: &'static str,
    digits: usize,
    read: fn(&T) -> Option<f64>,
    better: Better,
) -> Column<T> {
    Column { name, digits, read, better }
}

impl<T> Column<T> {
    /// Its value in a row.
    pub fn value(&self, row: &Row<'_, T>) -> Option<Estimate> {
        row.value(self.read)
    }

    /// The number of a row's results that have it.
    pub fn values(&self, row: &Row<'_, T>) -> usize {
        row.results.iter().flatten().filter(|result| (self.read)(result).is_some()).count()
    }

    /// Whether less or more of it is better.
    pub fn better(&self) -> Option<&'static str> {
        match self.better {
            Better::Less => Some("less"),
            Better::More => Some("more"),
            Better::Neither => None,
        }
    }

    /// Whether it says anything: a row has a value that isn't zero. Where more is better, zero is a result, too.
    pub fn is_telling(&self, rows: &[Row<'_, T>]) -> bool {
        let tells = |value: Estimate| value.mean != 0.0 || self.better == Better::More;
        rows.iter().any(|row| self.value(row).is_some_and(tells))
    }

    /// Whether any row differs from one of them.
    pub fn differs(&self, rows: &[Row<'_, T>], from: &Row<'_, T>) -> bool {
        rows.iter().any(|row| self.difference(row, from).is_some_and(|difference| !difference.is_zero()))
    }

    /// How much more a row has than another one, with the same seeds.
    pub fn difference(&self, row: &Row<'_, T>, from: &Row<'_, T>) -> Option<Estimate> {
        row.difference(from, self.read)
    }

    /// The text of the column in a row.
    pub fn shown(&self, row: &Row<'_, T>) -> String {
        self.text(self.value(row))
    }

    /// The text of a row's difference from another one.
    pub fn shown_difference(&self, row: &Row<'_, T>, from: &Row<'_, T>) -> String {
        let difference = self.difference(row, from);
        let sign = if difference.is_some_and(|difference| difference.mean > 0.0) { "+" } else { "" };
        format!("{sign}{}", self.text(difference))
    }

    fn text(&self, estimate: Option<Estimate>) -> String {
        let digits = self.digits;
        match estimate {
            Some(Estimate { mean, margin: Some(margin) }) => format!("{mean:.digits$} ±{margin:.digits$}"),
            Some(Estimate { mean, margin: None }) => format!("{mean:.digits$}"),
            None => "-".to_owned(),
        }
    }

    /// Whether a row is the best: the 95 % confidence interval of its difference from each rival is on the better side
    /// of zero, or the two are equal with every seed, and not all are. So one seed shows no best. Rows without a value
    /// don't compete, and one that can't be compared with a rival isn't the best.
    pub fn is_best(&self, row: &Row<'_, T>, rows: &[Row<'_, T>]) -> bool {
        if !row.competes || self.value(row).is_none() {
            return false;
        }
        let mut differs = false;
        for rival in rows.iter().filter(|rival| rival.competes && self.value(rival).is_some()) {
            let lead = match self.better {
                Better::Less => self.difference(rival, row),
                Better::More => self.difference(row, rival),
                Better::Neither => None,
            };
            match lead {
                Some(lead) if lead.is_positive() => differs = true,
                Some(lead) if lead.is_zero() => {}
                _ => return false,
            }
        }
        differs
    }
}

impl Column<f64> {
    /// The column of named figures, of which none is better.
    pub fn figures(unit: &'static str, digits: usize) -> Self {
        column(unit, digits, |figure: &f64| Some(*figure), Better::Neither)
    }
}
