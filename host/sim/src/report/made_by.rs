//! What made a result, for whoever finds it later: the program's version, the command's arguments, and the policies with
//! the digests of their components.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::slice::from_ref;

use infer_core::engine::Policies;
use infer_core::policy::PolicyInfo;
use serde::Serialize;
use serde_json::{Map, Value};

use super::chart::escape;
use crate::compare::Cell;

/// The program and the command that made a result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MadeBy {
    /// Version of the program.
    pub version: String,
    /// Arguments of the command, but for those that don't change results.
    pub args: Vec<String>,
}

impl MadeBy {
    /// The arguments as a shell takes them.
    fn command(&self) -> String {
        self.args.iter().map(|arg| quoted(arg)).collect::<Vec<_>>().join(" ")
    }
}

fn quoted(arg: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_./:=,+@%".contains(character);
    if !arg.is_empty() && arg.chars().all(is_plain) {
        return arg.to_owned();
    }
    format!("'{}'", arg.replace('\'', r"'\''"))
}

/// The policies of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slots {
    /// Decides what runs next.
    pub scheduler: Used,
    /// Decide what is admitted, in the order in which they are asked.
    pub admission: Vec<Used>,
    /// Decides which prefix is kept.
    pub prefix_cache: Used,
}

/// A policy of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Used {
    /// As it calls itself.
    pub name: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of its component in hex; `None` for a built-in.
    pub sha256: Option<String>,
    /// Its configuration as it was given: an object, which is empty for the defaults.
    pub config: Value,
}

impl Slots {
    /// Those of a run with `policies`.
    pub fn of(policies: &Policies) -> Self {
        Self {
            scheduler: Used::of(&policies.scheduler.info()),
            admission: policies.admission.members().iter().map(|info| Used::of(info)).collect(),
            prefix_cache: Used::of(&policies.prefix_cache.info()),
        }
    }

    /// The policies of each slot.
    fn all(&self) -> [&[Used]; 3] {
        [from_ref(&self.scheduler), &self.admission, from_ref(&self.prefix_cache)]
    }
}

impl Used {
    fn of(info: &PolicyInfo) -> Self {
        let PolicyInfo { name, version, digest, config, .. } = info;
        Self {
            name: name.clone(),
            version: version.clone(),
            sha256: Some(digest.clone()).filter(|digest| !digest.is_empty()),
            config: serde_json::from_str(config).unwrap_or_else(|_| Value::Object(Map::new())),
        }
    }
}

/// Columns of CSV. Members of a list are separated by commas, as in the flag, and have their configurations under their
/// names.
pub(super) const COLUMNS: [&str; 14] = [
    "version",
    "args",
    "scheduler",
    "scheduler_version",
    "scheduler_sha256",
    "scheduler_config",
    "admission",
    "admission_version",
    "admission_sha256",
    "admission_config",
    "prefix_cache",
    "prefix_cache_version",
    "prefix_cache_sha256",
    "prefix_cache_config",
];

/// A run's fields in these columns. Those of its policies are empty if they couldn't be created.
pub(super) fn fields(made_by: &MadeBy, policies: Option<&Slots>) -> Vec<String> {
    let mut fields = vec![made_by.version.clone(), made_by.command()];
    for members in policies.map(Slots::all).unwrap_or_default() {
        let joined = |read: fn(&Used) -> &str| members.iter().map(read).collect::<Vec<_>>().join(",");
        fields.extend([
            joined(|used| &used.name),
            joined(|used| &used.version),
            joined(|used| used.sha256.as_deref().unwrap_or_default()),
            configs(members),
        ]);
    }
    fields
}

fn configs(members: &[Used]) -> String {
    match members {
        [] => String::new(),
        [only] => only.config.to_string(),
        several => {
            let named = several.iter().map(|used| (used.name.clone(), used.config.clone()));
            Value::Object(named.collect()).to_string()
        }
    }
}

/// Adds a section about what made the runs to a page.
pub(super) fn put<'a>(page: &mut String, cells: impl IntoIterator<Item = &'a Cell>) {
    let mut contenders: BTreeMap<usize, &Cell> = BTreeMap::new();
    for cell in cells {
        contenders.entry(cell.entrant).or_insert(cell);
    }
    let Some(Cell { made_by, .. }) = contenders.values().next() else { return };
    page.push_str("<h2>What made this</h2>");
    if !made_by.version.is_empty() {
        let [version, command] = [&made_by.version, &made_by.command()].map(|text| escape(text));
        let _ = write!(page, "<p>infer {version}: <code>infer {command}</code></p>");
    }
    page.push_str(
        "<table><tr><th>policies</th><th>slot</th><th>name</th><th>version</th><th>SHA-256</th>\
         <th>configuration</th></tr>",
    );
    for cell in contenders.into_values() {
        let all = cell.policies.as_ref().map(Slots::all).unwrap_or_default();
        for (slot, members) in ["scheduler", "admission", "prefix cache"].into_iter().zip(all) {
            for used in members {
                let [contender, name, version] =
                    [&cell.contender, &used.name, &used.version].map(|text| escape(text));
                let sha256 = escape(used.sha256.as_deref().unwrap_or("built-in"));
                let config = escape(&used.config.to_string());
                let _ = write!(
                    page,
                    "<tr><td>{contender}</td><td>{slot}</td><td>{name}</td><td>{version}</td>\
                     <td><code>{sha256}</code></td><td><code>{config}</code></td></tr>"
                );
            }
        }
    }
    page.push_str("</table>");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::mixed;
    use super::*;

    fn used(name: &str, sha256: &str, config: Value) -> Used {
        Used { name: name.to_owned(), version: "1.2.0".to_owned(), sha256: Some(sha256.to_owned()), config }
    }

    fn made_by() -> MadeBy {
        let args = ["sim", "run", "--scheduler", r#"srpt={"patience_ms": 5}"#, "--trace", "monday's.csv", ""];
        MadeBy { version: "0.9.0".to_owned(), args: args.map(str::to_owned).to_vec() }
    }

    fn listed() -> Slots {
        let members = [used("slo", "aa", json!({})), used("memory-aware", "bb", json!({"reserve": 0.2}))];
        Slots { admission: members.to_vec(), ..Slots::of(&Policies::builtin()) }
    }

    #[test]
    fn built_ins_have_a_version_and_no_digest() {
        let slots = Slots::of(&Policies::builtin());
        let [one] = &slots.admission[..] else { panic!("no list: {slots:?}") };
        assert!(one.name.starts_with("builtin") && !one.version.is_empty(), "{one:?}");
        assert_eq!((&one.sha256, &one.config), (&None, &json!({})));
    }

    #[test]
    fn fields_can_be_pasted_into_a_shell_and_lists_into_their_flag() {
        let slots = listed();
        let fields = fields(&made_by(), Some(&slots));
        assert_eq!(fields.len(), COLUMNS.len());
        let of = |name: &str| {
            let at = COLUMNS.iter().position(|column| *column == name).expect("a column");
            &fields[at][..]
        };
        assert_eq!(of("version"), "0.9.0");
        let args = r#"sim run --scheduler 'srpt={"patience_ms": 5}' --trace 'monday'\''s.csv' ''"#;
        assert_eq!(of("args"), args);
        assert_eq!((of("admission"), of("admission_version")), ("slo,memory-aware", "1.2.0,1.2.0"));
        assert_eq!(of("admission_sha256"), "aa,bb");
        let configs: Value = serde_json::from_str(of("admission_config")).expect("JSON");
        assert_eq!(configs, json!({"slo": {}, "memory-aware": {"reserve": 0.2}}));
        assert_eq!((of("scheduler"), of("scheduler_sha256")), (&slots.scheduler.name[..], ""));
        assert_eq!((of("prefix_cache_config"), of("scheduler_config")), ("{}", "{}"));
    }

    #[test]
    fn policies_that_were_not_created_have_empty_fields() {
        assert_eq!(fields(&MadeBy::default(), None), vec![""; COLUMNS.len()]);
    }

    #[test]
    fn page_names_the_command_and_each_contender_s_policies_once() {
        let mut cells = mixed();
        for cell in &mut cells {
            cell.made_by = made_by();
            cell.policies = (cell.entrant == 0).then(listed);
        }
        let mut page = String::new();
        put(&mut page, &cells);
        for says in [
            "<p>infer 0.9.0: <code>infer sim run --scheduler 'srpt={&quot;patience_ms&quot;: 5}' --trace",
            "<tr><td>a</td><td>admission</td><td>slo</td><td>1.2.0</td><td><code>aa</code></td>\
             <td><code>{}</code></td></tr>",
            "<td>admission</td><td>memory-aware</td>",
            "<td><code>built-in</code></td>",
        ] {
            assert!(page.contains(says), "{says}: {page}");
        }
        assert_eq!(page.matches("<tr><td>").count(), 4, "{page}");
    }
}
