//! Writes the call of a fault file as a test of the policy's crate, in the SDK's types.
//!
//! The SDK's structures have the field names of fault files, so the text is made from the call's JSON: what is 0 is left
//! to `Default`. The test names the policy by the alias that `export_policy!` defines, because a fault file doesn't know
//! what its author called the type.

use std::collections::BTreeSet;
use std::path::Path;

use infer_core::policy::{FaultKind, FaultView};
use serde_json::{Map, Value};

use super::format::{Artifact, question_json, question_name};
use super::replay::{ReplayError, cannot_show, read};

/// Between the levels of the text.
const INDENT: &str = "    ";
/// Names of the kinds of cache events, by number.
const EVENT_KINDS: [&str; 4] = ["Stored", "Reused", "Idle", "Dropped"];
/// In columns: no block precedes this one.
const NO_PARENT: u64 = 0xffff_ffff;

/// Returns Rust source: a module with one test, which makes the file's call.
pub fn as_test(path: &Path) -> Result<String, ReplayError> {
    let artifact = read(path)?;
    let wrong = |what: &str| ReplayError::Format(path.to_owned(), what.to_owned());
    let kind = artifact.fault_kind().ok_or_else(|| wrong("its kind of fault is unknown"))?;
    let state = artifact.state().ok_or_else(|| wrong("its state is not hex"))?;
    Ok(module(artifact, kind, &state))
}

fn module(artifact: Artifact, kind: FaultKind, state: &[u8]) -> String {
    let Artifact { policy, fault, step, question, .. } = artifact;
    let view = question.view();
    let mut code = Code::default();
    let mut body = call(&mut code, &view);
    if cannot_show(kind, &view) {
        body.insert(
            0,
            "// The fault followed from earlier calls, too, which the file doesn't hold.".to_owned(),
        );
    }
    let config = match policy.members.as_slice() {
        [member] => {
            if !state.is_empty() {
                body.insert(0, format!("let _ = policy.import_state(&{state:?});"));
                body.insert(
                    0,
                    "// What it had exported before. One that doesn't read this starts cold.".to_owned(),
                );
            }
            member.config.to_string()
        }
        members => {
            let given = members.iter().map(|member| format!("{} {}", member.name, member.config));
            let given = given.collect::<Vec<_>>().join(", ");
            body.insert(0, format!("// It was one of a list; give the configuration of yours: {given}"));
            "{}".to_owned()
        }
    };
    code.uses.extend(["Policy", "parse_config"]);
    let used: Vec<&str> = code.uses.into_iter().collect();
    let uses = used.join(", ");
    let check = if code.checks_plan { "    use infer_policy_sdk::testing::check_plan;\n" } else { "" };
    let body: String = body.iter().map(|line| format!("        {line}\n")).collect();
    let (name, version) = (&policy.name, &policy.version);
    let said = one_line(&fault.message);
    let module = format!("fault_{}_{}", question_name(&view), kind.name()).replace('-', "_");
    format!(
        "// At step {step}, {name} {version} failed with {}: {said}
#[cfg(test)]
mod {module} {{
{check}    use infer_policy_sdk::{{{uses}}};

    // The type that `export_policy!` was given.
    use crate::ExportedPolicy;

    #[test]
    fn is_answered() {{
        let config = parse_config({}).unwrap();
        let mut policy = <ExportedPolicy as Policy>::new(config).unwrap();
{body}    }}
}}
",
        fault.kind,
        raw(&config)
    )
}

/// The call and what its answer must keep.
fn call(code: &mut Code, view: &FaultView) -> Vec<String> {
    let json = question_json(view);
    let arguments = json.as_object().and_then(|question| question.values().next());
    let nothing = Map::new();
    let fields = arguments.and_then(Value::as_object).unwrap_or(&nothing);
    let part = |name: &str| fields.get(name).and_then(Value::as_object).unwrap_or(&nothing);
    let mut lines = Vec::new();
    let mut given = |code: &mut Code, name: &str, of: &'static str, fields: &Map<String, Value>| {
        lines.push(format!("let {name} = {};", code.structure(of, fields, 2)));
    };
    let (kind, asks) = match view {
        FaultView::Schedule(_) => {
            given(code, "step", "Step", fields);
            ("Scheduler as _", "schedule(&step)".to_owned())
        }
        FaultView::Admit(..) => {
            given(code, "request", "Request", part("request"));
            given(code, "load", "Load", part("load"));
            ("Admission as _", "admit(&request, &load)".to_owned())
        }
        FaultView::Measure(_) => {
            given(code, "load", "Load", fields);
            ("Admission as _", "measure(&load)".to_owned())
        }
        FaultView::Reuse(_) => {
            given(code, "hit", "Hit", fields);
            ("PrefixCache as _", "reuse(&hit)".to_owned())
        }
        FaultView::Retain(_) => {
            given(code, "ended", "Ended", fields);
            ("PrefixCache as _", "retain(&ended)".to_owned())
        }
        FaultView::Observe(_) => {
            lines = events(code, fields);
            ("PrefixCache as _", "observe(&events)".to_owned())
        }
        FaultView::Evict { now, need } => {
            code.uses.insert("Micros");
            ("PrefixCache as _", format!("evict({}, {need})", micros(now.0)))
        }
        FaultView::Lifecycle => {
            lines.push("let state = policy.export_state();".to_owned());
            lines.push("policy.import_state(&state).unwrap();".to_owned());
            return lines;
        }
    };
    code.uses.insert(kind);
    lines.push(format!("let answer = policy.{asks};"));
    lines.push("println!(\"{answer:?}\");".to_owned());
    match view {
        FaultView::Schedule(_) => {
            code.checks_plan = true;
            lines.push("check_plan(&step, &answer).unwrap();".to_owned());
        }
        FaultView::Reuse(_) => lines.push("assert!(answer <= hit.cached_tokens);".to_owned()),
        _ => {}
    }
    lines
}

/// Cache events, which the SDK takes row by row.
fn events(code: &mut Code, fields: &Map<String, Value>) -> Vec<String> {
    let pool = fields.iter().filter(|(_, value)| value.is_object());
    let pool: Map<String, Value> = pool.map(|(name, value)| (name.clone(), value.clone())).collect();
    let mut events: Vec<String> = rows(fields).iter().filter_map(|row| code.event(row)).collect();
    let (change, start) = (if events.is_empty() { "" } else { "mut " }, code.part_of("Events", &pool, 2));
    let mut lines = vec![format!("let {change}events = {start};")];
    lines.append(&mut events);
    lines
}

/// The text's needs.
#[derive(Default)]
struct Code {
    /// What it uses of the SDK.
    uses: BTreeSet<&'static str>,
    checks_plan: bool,
}

impl Code {
    /// A structure, with the fields that are not 0. Nested ones begin at this level.
    fn structure(&mut self, of: &'static str, fields: &Map<String, Value>, level: usize) -> String {
        let given = self.fields(of, fields, level + 1);
        let rest = given.len() < fields.len();
        self.written(of, given, rest, level)
    }

    /// A structure with more fields than these.
    fn part_of(&mut self, of: &'static str, fields: &Map<String, Value>, level: usize) -> String {
        let given = self.fields(of, fields, level + 1);
        self.written(of, given, true, level)
    }

    fn fields(&mut self, of: &'static str, fields: &Map<String, Value>, level: usize) -> Vec<String> {
        let given = fields.iter().filter_map(|(name, value)| {
            let value = self.value(of, name, value, level)?;
            Some(format!("{name}: {value}"))
        });
        given.collect()
    }

    /// Those with views are written over several lines, the others in one.
    fn written(&mut self, of: &'static str, mut given: Vec<String>, rest: bool, level: usize) -> String {
        self.uses.insert(of);
        if given.is_empty() {
            return format!("{of}::default()");
        }
        if rest {
            given.push(format!("..{of}::default()"));
        }
        if matches!(of, "Limits" | "Memory" | "Row" | "Tenant") {
            return format!("{of} {{ {} }}", given.join(", "));
        }
        // Nothing may follow what `..` names.
        let end = if rest { "" } else { "," };
        let (inner, outer) = (INDENT.repeat(level + 1), INDENT.repeat(level));
        format!("{of} {{\n{inner}{}{end}\n{outer}}}", given.join(&format!(",\n{inner}")))
    }

    /// A field; `None` if it is as in `Default`.
    fn value(&mut self, of: &str, name: &str, value: &Value, level: usize) -> Option<String> {
        match value {
            Value::Bool(set) => set.then(|| "true".to_owned()),
            Value::Number(number) if number.as_u64() == Some(0) => None,
            Value::Number(number) => Some(match newtype(of, name) {
                Some("Micros") => {
                    self.uses.insert("Micros");
                    micros(number.as_u64().unwrap_or(0))
                }
                Some(wrapped) => {
                    self.uses.insert(wrapped);
                    format!("{wrapped}({number})")
                }
                None if number.as_u64() == Some(u64::MAX) => "u64::MAX".to_owned(),
                None => number.to_string(),
            }),
            Value::Object(fields) => {
                let of = match name {
                    "limits" => "Limits",
                    "memory" => "Memory",
                    "tenants" => return self.rows("Tenant", fields, level),
                    _ => return self.rows("Row", fields, level),
                };
                let some = fields.values().any(|value| value.as_u64() != Some(0));
                some.then(|| self.structure(of, fields, level))
            }
            Value::Null | Value::String(_) | Value::Array(_) => None,
        }
    }

    /// Columns as rows, if there are any.
    fn rows(&mut self, of: &'static str, columns: &Map<String, Value>, level: usize) -> Option<String> {
        let (inner, outer) = (INDENT.repeat(level + 1), INDENT.repeat(level));
        let rows: Vec<String> = rows(columns)
            .iter()
            .map(|row| format!("{inner}{},\n", self.structure(of, row, level + 1)))
            .collect();
        let text = rows.concat();
        (!text.is_empty()).then(|| format!("[\n{text}{outer}]\n{outer}.into_iter()\n{outer}.collect()"))
    }

    /// A statement that adds an event. `None` if the SDK doesn't know its kind.
    fn event(&mut self, row: &Map<String, Value>) -> Option<String> {
        let number = |name: &str| row.get(name).and_then(Value::as_u64).unwrap_or(0);
        let kind = EVENT_KINDS.get(usize::try_from(number("kind")).ok()?)?;
        self.uses.extend(["BlockId", "Event", "EventKind", "Micros", "SessionId", "TenantId"]);
        let parent = match number("parent") {
            NO_PARENT => "None".to_owned(),
            block => format!("Some(BlockId({block}))"),
        };
        Some(format!(
            "events.push(Event {{ at: {}, kind: EventKind::{kind}, block: BlockId({}), parent: {parent}, depth: {}, tenant: \
             TenantId({}), session: SessionId({}) }});",
            micros(number("at")),
            number("block"),
            number("depth"),
            number("tenant"),
            number("session")
        ))
    }
}

/// The rows of columns. Those of a damaged file may differ in length.
fn rows(columns: &Map<String, Value>) -> Vec<Map<String, Value>> {
    let columns: Vec<(&String, &Vec<Value>)> =
        columns.iter().filter_map(|(name, column)| Some((name, column.as_array()?))).collect();
    let count = columns.iter().map(|(_, column)| column.len()).max().unwrap_or(0);
    let row = |at: usize| -> Map<String, Value> {
        let cells = columns.iter().map(|(name, column)| {
            let cell = column.get(at).cloned().unwrap_or_else(|| Value::from(0));
            ((*name).clone(), cell)
        });
        cells.collect()
    };
    (0..count).map(row).collect()
}

/// What the SDK wraps a number in. Rows have the numbers as they are.
fn newtype(of: &str, name: &str) -> Option<&'static str> {
    match (of, name) {
        ("Row", _) => None,
        ("Tenant", "id") => Some("TenantId"),
        (_, "now" | "last_step" | "idle_since" | "starvation_bound" | "arrived" | "deadline") => {
            Some("Micros")
        }
        (_, "id") => Some("SequenceId"),
        (_, "tenant") => Some("TenantId"),
        (_, "session") => Some("SessionId"),
        _ => None,
    }
}

fn micros(micros: u64) -> String {
    if micros == u64::MAX { "Micros::NEVER".to_owned() } else { format!("Micros({micros})") }
}

/// A raw string literal.
fn raw(text: &str) -> String {
    let mut hashes = "#".to_owned();
    while text.contains(&format!("\"{hashes}")) {
        hashes.push('#');
    }
    format!("r{hashes}\"{text}\"{hashes}")
}

/// Text that can't leave its comment.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(slot: &str, config: Value, state: &str, kind: &str, question: Value) -> String {
        let artifact = json!({
            "format": 1, "slot": slot, "step": 7, "at_us": 1, "shadow": false, "removed": false, "state": state,
            "policy": {"name": "mine", "version": "0.1.0",
                "members": [{"name": "mine", "version": "0.1.0", "sha256": "", "config": config}]},
            "fault": {"kind": kind, "message": "it\nfailed"}, "question": question,
        });
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fault.json");
        std::fs::write(&path, artifact.to_string()).unwrap();
        as_test(&path).unwrap()
    }

    #[test]
    fn a_call_is_written_in_the_types_of_the_sdk() {
        let hit = json!({"reuse": {"now": 5, "id": 3, "tenant": 0, "session": 9, "prompt_tokens": 64,
            "cached_tokens": 32, "same_session": true}});
        let text = written("prefix-cache", json!({"of": "\"#"}), "0aff", "invalid-decision", hit);
        let expected = r####"// At step 7, mine 0.1.0 failed with invalid-decision: it failed
#[cfg(test)]
mod fault_reuse_invalid_decision {
    use infer_policy_sdk::{Hit, Micros, Policy, PrefixCache as _, SequenceId, SessionId, parse_config};

    // The type that `export_policy!` was given.
    use crate::ExportedPolicy;

    #[test]
    fn is_answered() {
        let config = parse_config(r##"{"of":"\"#"}"##).unwrap();
        let mut policy = <ExportedPolicy as Policy>::new(config).unwrap();
        // What it had exported before. One that doesn't read this starts cold.
        let _ = policy.import_state(&[10, 255]);
        let hit = Hit {
            now: Micros(5),
            id: SequenceId(3),
            session: SessionId(9),
            prompt_tokens: 64,
            cached_tokens: 32,
            same_session: true,
            ..Hit::default()
        };
        let answer = policy.reuse(&hit);
        println!("{answer:?}");
        assert!(answer <= hit.cached_tokens);
    }
}
"####;
        assert_eq!(text, expected);
    }

    #[test]
    fn columns_become_rows_even_if_they_differ_in_length() {
        let pool = json!({"block_size": 16, "total_blocks": 8, "free_blocks": 0, "cached_blocks": 0});
        let events = json!({"observe": {"memory": pool, "at": [1, 2], "kind": [0, 2], "block": [4, 5],
            "parent": [u32::MAX, 4], "depth": [0, 1], "tenant": [1], "session": []}});
        let text = written("prefix-cache", json!({}), "", "trap", events);
        for part in [
            "// The fault followed from earlier calls",
            "        let mut events = Events {\n            memory: Memory { block_size: 16, total_blocks: 8, \
             ..Memory::default() },\n            ..Events::default()\n        };\n",
            "block: BlockId(4), parent: None, depth: 0, tenant: TenantId(1), session: SessionId(0) });",
            "kind: EventKind::Idle, block: BlockId(5), parent: Some(BlockId(4)), depth: 1, tenant: TenantId(0),",
        ] {
            assert!(text.contains(part), "no `{part}` in {text}");
        }
    }
}
