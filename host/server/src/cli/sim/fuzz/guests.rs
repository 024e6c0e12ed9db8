//! Policies from outside that take part in cases.

use infer_core::policy::PolicyKind;
use infer_sim::fuzz::Outsider;
use infer_wasm::PolicyLoader;

use super::super::Failure;
use super::super::policies::{Choice, choice, loader};

/// Policies given on the command line or named in a replayed file.
pub struct Guests {
    loader: PolicyLoader,
    choices: Vec<(String, Choice)>,
}

impl Guests {
    /// Loads policies given as `KIND SPEC`, the form in which replay files name them.
    pub fn load(names: &[String]) -> Result<Self, String> {
        let message = |failure| match failure {
            Failure::Usage(message) | Failure::Failed(message) => message,
        };
        let loader = loader().map_err(message)?;
        let mut choices = Vec::new();
        for name in names {
            let (kind, spec) = name.split_once(' ').unwrap_or((name, ""));
            let kind = PolicyKind::ALL.into_iter().find(|known| known.name() == kind);
            let kind = kind.ok_or_else(|| format!("`{name}` doesn't start with a kind of policy"))?;
            let choice = choice(kind, spec).map_err(message)?;
            // Report a policy that can't be loaded before the run, not in the middle of it.
            choice.load(&loader).map_err(|error| format!("{name}: {error}"))?;
            choices.push((name.clone(), choice));
        }
        Ok(Self { loader, choices })
    }

    /// As they were given.
    pub fn names(&self) -> Vec<String> {
        self.choices.iter().map(|(name, _)| name.clone()).collect()
    }

    /// As policies of a case.
    pub fn outsiders(&self) -> Vec<Outsider<'_>> {
        let loader = &self.loader;
        let each = self.choices.iter().map(|(name, choice)| Outsider {
            name: name.clone(),
            make: Box::new(move || choice.load(loader).expect("`load` has tried it")),
        });
        each.collect()
    }
}
