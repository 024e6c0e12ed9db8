//! Reports of what is no sweep: sections of named figures, as text or as a page.

use super::chart::{Chart, escape};
use super::columns::{Column, Row};
use super::{html, table};

/// A part of a report.
pub struct Section {
    /// What it is about.
    pub heading: String,
    /// Sentences below the heading.
    pub notes: Vec<String>,
    /// Its tables.
    pub tables: Vec<Figures>,
    /// Charts and their titles, for pages.
    pub charts: Vec<(&'static str, Chart)>,
}

/// A table of named figures. It is left out if all are zero.
pub struct Figures {
    /// What they are.
    pub title: &'static str,
    /// Their unit.
    pub unit: &'static str,
    /// Digits after the point.
    pub digits: usize,
    /// Names and figures.
    pub rows: Vec<(String, f64)>,
}

impl Figures {
    /// The only column.
    fn column(&self) -> [Column<f64>; 1] {
        [Column::figures(self.unit, self.digits)]
    }

    fn rows(&self) -> Vec<Row<'_, f64>> {
        self.rows.iter().map(|(name, figure)| Row::of_figure(name, figure)).collect()
    }
}

impl Section {
    /// Renders it for the terminal.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n", self.heading);
        for note in &self.notes {
            text += &format!("  {note}\n");
        }
        for figures in &self.tables {
            let mut shown = String::new();
            table::write_table(&mut shown, figures.title, &figures.column(), &figures.rows());
            if !shown.is_empty() {
                text += &format!("\n{shown}");
            }
        }
        text
    }

    /// Adds it to the body of a page.
    fn put(&self, body: &mut String) {
        *body += &format!("<h2>{}</h2>", escape(&self.heading));
        for note in &self.notes {
            *body += &format!("<p>{}</p>", escape(note));
        }
        for figures in &self.tables {
            html::table(body, figures.title, &figures.column(), &figures.rows());
        }
        if !self.charts.is_empty() {
            body.push_str("<div class=\"charts\">");
            for (title, chart) in &self.charts {
                html::figure(body, title, chart);
            }
            body.push_str("</div>");
        }
    }
}

/// Renders a page that loads nothing from elsewhere.
pub fn page(title: &'static str, sections: &[Section]) -> String {
    let mut body = String::new();
    for section in sections {
        section.put(&mut body);
    }
    html::document(title, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sections() -> [Section; 2] {
        let rows = vec![("a <b>".to_owned(), 1.25), ("nothing".to_owned(), 0.0)];
        let full = Section {
            heading: "x & y".to_owned(),
            notes: vec!["<moody> fell over".to_owned()],
            tables: vec![
                Figures { title: "costs", unit: "us", digits: 2, rows },
                Figures { title: "empty", unit: "us", digits: 2, rows: vec![("zero".to_owned(), 0.0)] },
            ],
            charts: Vec::new(),
        };
        let plain =
            Section { heading: "z".to_owned(), notes: Vec::new(), tables: Vec::new(), charts: Vec::new() };
        [full, plain]
    }

    #[test]
    fn text_has_the_notes_and_the_tables_that_tell_anything() {
        let text = sections()[0].text();
        let expected = "x & y\n  <moody> fell over\n\n  costs       us\n  a <b>    1.25\n  nothing  0.00\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn page_has_every_section_and_escapes_names() {
        let page = page("infer sim test", &sections());
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</body></html>\n"), "{page}");
        for says in [
            "<title>infer sim test</title>",
            "<h1>infer sim test</h1>",
            "<h2>x &amp; y</h2><p>&lt;moody&gt; fell over</p><table>",
            "<td>a &lt;b&gt;</td><td>1.25</td>",
            "</table><h2>z</h2></body>",
        ] {
            assert!(page.contains(says), "{says}: {page}");
        }
        assert!(!page.contains("empty") && !page.contains("<figure>") && !page.contains("best\""), "{page}");
    }
}
