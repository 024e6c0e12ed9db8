//! The names that a request may give as its model. To a tenant with a list, a name that isn't on it is one that the host
//! doesn't serve: each error comes from here, so none tells the two apart.

use crate::tenants::ModelList;

/// The names of the model and its adapters, as far as a tenant may use them.
#[derive(Clone, Copy, Debug)]
pub struct Models<'a> {
    served: &'a [String],
    /// `None` for all.
    list: Option<&'a ModelList>,
}

impl<'a> Models<'a> {
    /// All that are served.
    pub fn all(served: &'a [String]) -> Self {
        Self { served, list: None }
    }

    /// Those of them that are on a list.
    pub fn of(served: &'a [String], list: &'a ModelList) -> Self {
        Self { served, list: Some(list) }
    }

    /// The names, each with its place among all that are served.
    pub fn placed(self) -> impl Iterator<Item = (usize, &'a str)> {
        let placed = self.served.iter().map(String::as_str).enumerate();
        placed.filter(move |(_, name)| self.list.is_none_or(|list| list.allows(name)))
    }

    /// The place of a name among all that are served; `None` if requests may not use it.
    pub fn place(self, name: &str) -> Option<usize> {
        self.placed().find(|(_, known)| *known == name).map(|(place, _)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_among_all_that_are_served() {
        let served = ["base", "also-base", "sql"].map(str::to_owned);
        let list = ModelList::of(vec!["sql".to_owned(), "also-base".to_owned(), "gone".to_owned()]).unwrap();
        let some = Models::of(&served, &list);
        assert_eq!(some.placed().collect::<Vec<_>>(), [(1, "also-base"), (2, "sql")]);
        assert_eq!(
            ["base", "also-base", "sql", "gone"].map(|name| some.place(name)),
            [None, Some(1), Some(2), None]
        );
        assert_eq!(Models::all(&served).placed().count(), 3);
        assert_eq!(Models::of(&served, &ModelList::default()).place("sql"), Some(2));
    }
}
