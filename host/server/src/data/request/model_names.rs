//! The names that a request may give as its model. To a tenant with a list, a name that isn't on it is one that the host
//! doesn't serve: each error comes from here, so none tells the two apart.

use std::sync::Arc;

use crate::adapters::{AdapterHold, ServedAdapter};
use crate::tenants::ModelList;

/// The names of the model and its adapters, as far as a tenant may use them.
#[derive(Clone, Copy, Debug)]
pub struct Models<'a> {
    own: &'a [String],
    adapters: &'a [Arc<ServedAdapter>],
    /// `None` for all.
    list: Option<&'a ModelList>,
}

/// What a name means.
#[derive(Clone, Copy, Debug)]
pub enum Named<'a> {
    /// The model itself, under one of its names.
    Own(&'a str),
    /// An adapter.
    Adapter(&'a Arc<ServedAdapter>),
}

/// What a request chose: an adapter, which it holds, or the model itself.
pub type Chosen = Option<Arc<AdapterHold>>;

impl<'a> Named<'a> {
    /// The name.
    pub fn name(self) -> &'a str {
        match self {
            Self::Own(name) => name,
            Self::Adapter(adapter) => adapter.name(),
        }
    }
}

impl<'a> Models<'a> {
    /// All names of a model without adapters.
    pub fn all(own: &'a [String]) -> Self {
        Self { own, adapters: &[], list: None }
    }

    /// Those names of a model and its adapters that are on a list.
    pub fn of(own: &'a [String], adapters: &'a [Arc<ServedAdapter>], list: &'a ModelList) -> Self {
        Self { own, adapters, list: Some(list) }
    }

    /// The names: those of the model first, and then those of its adapters.
    pub fn named(self) -> impl Iterator<Item = Named<'a>> {
        let own = self.own.iter().map(|name| Named::Own(name));
        let all = own.chain(self.adapters.iter().map(Named::Adapter));
        all.filter(move |named| self.list.is_none_or(|list| list.allows(named.name())))
    }

    /// What a name means; `None` if requests may not use it.
    pub fn find(self, name: &str) -> Option<Named<'a>> {
        self.named().find(|named| named.name() == name)
    }

    /// Chooses by name for a request; `None` if it may not use it.
    pub fn choose(self, name: &str) -> Option<Chosen> {
        match self.find(name)? {
            Named::Own(_) => Some(None),
            Named::Adapter(adapter) => adapter.hold().map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapters::Names;

    fn adapter(name: &str) -> Arc<ServedAdapter> {
        let names = Names { name: name.to_owned(), root: name.to_owned(), place: name.to_owned() };
        Arc::new(ServedAdapter::new(infer_core::AdapterId(1), names, infer_model::AdapterSize::default()))
    }

    #[test]
    fn names_are_those_of_the_model_and_its_adapters_that_a_list_has() {
        let own = ["base", "also-base"].map(str::to_owned);
        let adapters = ["sql", "support"].map(adapter);
        let list = ModelList::of(vec!["sql".to_owned(), "also-base".to_owned(), "gone".to_owned()]).unwrap();
        let some = Models::of(&own, &adapters, &list);
        assert_eq!(some.named().map(Named::name).collect::<Vec<_>>(), ["also-base", "sql"]);
        let chosen = |models: Models<'_>, name: &str| {
            models.choose(name).map(|chosen| chosen.map(|adapter| adapter.name().to_owned()))
        };
        let sql = Some(Some("sql".to_owned()));
        assert_eq!(
            ["base", "also-base", "sql", "support", "gone"].map(|name| chosen(some, name)),
            [None, Some(None), sql.clone(), None, None]
        );
        assert_eq!(Models::all(&own).named().count(), 2);
        let all = ModelList::default();
        assert_eq!(chosen(Models::of(&own, &adapters, &all), "sql"), sql);
    }

    #[test]
    fn a_request_holds_the_adapter_that_it_chose() {
        let adapters = [adapter("sql")];
        let all = ModelList::default();
        let models = Models::of(&[], &adapters, &all);
        assert!(models.find("sql").is_some());
        assert_eq!(adapters[0].live(), 0, "looking for it is no use of it");
        let chosen = models.choose("sql");
        assert_eq!(adapters[0].live(), 1);
        drop(chosen);
        assert_eq!(adapters[0].live(), 0);
    }
}
