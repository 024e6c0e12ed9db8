//! The view's rows, kept up to date in place: a step changes a few cells, and nothing is rebuilt.

use crate::policy::SequenceColumns;
use crate::sequence::SeqIx;

/// One row of the view.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SequenceRow {
    pub id: u64,
    pub tenant: u32,
    pub session: u64,
    pub priority: i32,
    pub arrived: u64,
    pub deadline: u64,
    pub prompt_tokens: u32,
    pub computed_tokens: u32,
    pub pending_tokens: u32,
    pub idle_blocks: u32,
    pub generated_tokens: u32,
    pub max_new_tokens: u32,
    pub expected_tokens: u32,
    pub blocks: u32,
    pub freeable_blocks: u32,
    pub preemptions: u32,
}

macro_rules! columns {
    ($($name:ident),*) => {
        impl SequenceColumns {
            fn push_row(&mut self, row: &SequenceRow) {
                $(self.$name.push(row.$name);)*
            }

            fn insert_row(&mut self, at: usize, row: &SequenceRow) {
                $(self.$name.insert(at, row.$name);)*
            }

            fn remove_rows(&mut self, sorted: &[u32]) {
                $(remove_sorted(&mut self.$name, sorted);)*
            }

            /// Whether all columns are equally long.
            pub fn is_even(&self) -> bool {
                let len = self.id.len();
                $(self.$name.len() == len)&&*
            }
        }
    };
}

columns!(
    id,
    tenant,
    session,
    priority,
    arrived,
    deadline,
    prompt_tokens,
    computed_tokens,
    pending_tokens,
    idle_blocks,
    generated_tokens,
    max_new_tokens,
    expected_tokens,
    blocks,
    freeable_blocks,
    preemptions
);

impl SequenceColumns {
    /// Rows.
    pub fn len(&self) -> usize {
        self.id.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.id.is_empty()
    }
}

/// Removes the elements at ascending positions in one pass.
fn remove_sorted<T: Copy>(column: &mut Vec<T>, sorted: &[u32]) {
    let Some(&first) = sorted.first() else { return };
    let mut to = first as usize;
    for (i, &at) in sorted.iter().enumerate() {
        let from = at as usize + 1;
        let end = sorted.get(i + 1).map_or(column.len(), |&next| next as usize);
        column.copy_within(from..end, to);
        to += end - from;
    }
    column.truncate(to);
}

/// The sequences of the rows, kept apart from the columns because policies must not see slab indexes.
#[derive(Debug, Default)]
pub(crate) struct Places {
    pub ix: Vec<SeqIx>,
}

impl Places {
    pub fn push(&mut self, columns: &mut SequenceColumns, ix: SeqIx, row: &SequenceRow) {
        columns.push_row(row);
        self.ix.push(ix);
    }

    pub fn insert(&mut self, columns: &mut SequenceColumns, at: usize, ix: SeqIx, row: &SequenceRow) {
        columns.insert_row(at, row);
        self.ix.insert(at, ix);
    }

    /// Removes the rows at ascending positions.
    pub fn remove(&mut self, columns: &mut SequenceColumns, sorted: &[u32]) {
        debug_assert!(sorted.is_sorted());
        columns.remove_rows(sorted);
        remove_sorted(&mut self.ix, sorted);
    }
}

#[cfg(test)]
mod tests {
    use super::remove_sorted;

    #[test]
    fn rows_are_removed_from_front_middle_and_end() {
        for (remove, left) in [
            (vec![], vec![10, 11, 12, 13, 14]),
            (vec![0], vec![11, 12, 13, 14]),
            (vec![1, 2], vec![10, 13, 14]),
            (vec![0, 2, 4], vec![11, 13]),
            (vec![4], vec![10, 11, 12, 13]),
            (vec![0, 1, 2, 3, 4], vec![]),
        ] {
            let mut column = vec![10, 11, 12, 13, 14];
            remove_sorted(&mut column, &remove);
            assert_eq!(column, left, "{remove:?}");
        }
    }
}
