//! Which models a tenant may use.

use std::collections::{BTreeMap, BTreeSet};

/// Most names of a list.
const MAX_MODELS: usize = 1_024;
/// Most names that a reload warns of.
const MAX_NAMED: usize = 8;

/// The names of the models that a tenant may use. Without a list these are all that the host serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelList(Option<BTreeSet<String>>);

impl ModelList {
    /// A list of these names.
    ///
    /// # Errors
    /// There are none, too many, or an empty one.
    pub fn of(names: Vec<String>) -> Result<Self, String> {
        if names.is_empty() {
            return Err("expected at least one model; without the key the tenant may use all".to_owned());
        }
        if names.len() > MAX_MODELS {
            return Err(format!("expected at most {MAX_MODELS} models, found {}", names.len()));
        }
        if names.iter().any(String::is_empty) {
            return Err("a model's name must not be empty".to_owned());
        }
        Ok(Self(Some(names.into_iter().collect())))
    }

    /// Whether the tenant may use the model of this name.
    pub fn allows(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|names| names.contains(name))
    }

    /// The names, if there is a list.
    pub fn names(&self) -> Option<&BTreeSet<String>> {
        self.0.as_ref()
    }
}

/// Says which names of tenants' lists a host doesn't serve, and where they are. It is no error: adapters come and go.
pub(super) fn unserved<'a>(
    lists: impl Iterator<Item = (&'a str, &'a ModelList)>,
    served: &[String],
) -> Vec<String> {
    let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tenant, list) in lists {
        for name in list.names().into_iter().flatten().filter(|name| !served.contains(name)) {
            missing.entry(name).or_default().push(tenant);
        }
    }
    let line = |(name, tenants): (&&str, &Vec<&str>)| {
        let more = match tenants.len() - 1 {
            0 => String::new(),
            more => format!(" and of {more} more"),
        };
        let first = tenants[0];
        format!("`{name}` is no model that this host serves, but in `models` of the tenant `{first}`{more}")
    };
    let mut lines: Vec<String> = missing.iter().take(MAX_NAMED).map(line).collect();
    let more = missing.len().saturating_sub(MAX_NAMED);
    lines.extend((more > 0).then(|| format!("{more} more names in `models` of tenants are not served")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> ModelList {
        ModelList::of(names.iter().map(ToString::to_string).collect()).unwrap()
    }

    #[test]
    fn list_allows_its_names_and_no_list_allows_all() {
        let some = list(&["a", "org/b"]);
        assert!(some.allows("a") && some.allows("org/b") && !some.allows("b") && !some.allows("A"));
        assert!(ModelList::default().allows("anything"));
        for (names, words) in [
            (Vec::new(), "at least one model"),
            (vec![String::new()], "must not be empty"),
            (vec!["x".to_owned(); MAX_MODELS + 1], "at most 1024 models, found 1025"),
        ] {
            let error = ModelList::of(names).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn names_that_are_not_served_are_told_once_and_up_to_a_bound() {
        let told = |lists: &[(&str, ModelList)]| {
            unserved(lists.iter().map(|(tenant, list)| (*tenant, list)), &["demo".to_owned()])
        };
        let lists = [
            ("alice", list(&["demo", "sql"])),
            ("bob", ModelList::default()),
            ("carol", list(&["sql"])),
            ("dave", list(&["gone"])),
        ];
        assert_eq!(
            told(&lists),
            [
                "`gone` is no model that this host serves, but in `models` of the tenant `dave`",
                "`sql` is no model that this host serves, but in `models` of the tenant `alice` and of 1 more",
            ]
        );
        assert_eq!(told(&lists[1..2]), Vec::<String>::new());
        let names: Vec<String> = (0..20).map(|nth| format!("m{nth}")).collect();
        let lines = told(&[("alice", ModelList::of(names).unwrap())]);
        assert_eq!(lines.len(), MAX_NAMED + 1);
        assert_eq!(lines[MAX_NAMED], "12 more names in `models` of tenants are not served");
    }
}
