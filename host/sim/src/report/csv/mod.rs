//! CSV with a row per run, a row per tenant of runs with several, and more columns than the tables.

mod columns;
#[cfg(test)]
mod tests;

use ::csv::Writer;

use super::made_by;
use crate::compare::Cell;
use columns::COLUMNS;
use columns::Read::{self, Both, Every, Run, Tenant};

/// Renders CSV. Durations are in milliseconds; what has no value is empty.
pub fn csv(cells: &[Cell]) -> String {
    let mut text = Writer::from_writer(Vec::new());
    let made_by_columns = made_by::COLUMNS.map(str::to_owned);
    write(&mut text, COLUMNS.map(|(name, _)| name.to_owned()), &made_by_columns);
    for cell in cells {
        let made_by = made_by::fields(&cell.made_by, cell.policies.as_ref());
        let outcome = cell.outcome.as_ref().ok();
        let run = |read: &Read| match read {
            Every(read) => read(cell),
            Run(read) | Both(read, _) => outcome.map_or_else(String::new, read),
            Tenant(_) => String::new(),
        };
        write(&mut text, COLUMNS.each_ref().map(|(_, read)| run(read)), &made_by);
        let tenants = outcome.map(|outcome| outcome.tenants.as_slice()).unwrap_or_default();
        for tenant in tenants.iter().filter(|_| tenants.len() > 1) {
            let part = |read: &Read| match read {
                Every(read) => read(cell),
                Both(_, read) | Tenant(read) => read(tenant),
                Run(_) => String::new(),
            };
            write(&mut text, COLUMNS.each_ref().map(|(_, read)| part(read)), &made_by);
        }
    }
    String::from_utf8(text.into_inner().expect("memory takes it")).expect("all fields are text")
}

fn write(text: &mut Writer<Vec<u8>>, fields: [String; COLUMNS.len()], made_by: &[String]) {
    text.write_record(fields.iter().chain(made_by)).expect("memory takes it");
}
