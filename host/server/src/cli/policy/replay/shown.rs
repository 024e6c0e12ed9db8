//! A call and its answer as text: what has one value in lines, what has columns in tables.

use serde_json::{Map, Value};

/// The lines of a call: the function's arguments, each structure under its name.
pub(super) fn call(question: &Value) -> Vec<String> {
    match question {
        Value::Object(call) => {
            call.iter().flat_map(|(function, arguments)| value(function, arguments)).collect()
        }
        without_arguments => value("call", without_arguments),
    }
}

/// The lines of a value.
pub(super) fn value(name: &str, value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) => structure(name, fields),
        other => vec![format!("{name}: {}", cell(name, other))],
    }
}

fn structure(name: &str, fields: &Map<String, Value>) -> Vec<String> {
    let mut lines = Vec::new();
    let single = fields.iter().filter(|(_, value)| !value.is_object() && !value.is_array());
    let single: Vec<String> = single.map(|(name, value)| format!("{name} {}", cell(name, value))).collect();
    if !single.is_empty() {
        lines.push(format!("{name}: {}", single.join(", ")));
    }
    let columns: Vec<(&str, &[Value])> = fields
        .iter()
        .filter_map(|(name, value)| Some((name.as_str(), value.as_array()?.as_slice())))
        .collect();
    if !columns.is_empty() {
        lines.extend(table(name, &columns));
    }
    for (name, value) in fields {
        if let Value::Object(fields) = value {
            lines.extend(structure(name, fields));
        }
    }
    lines
}

/// Without the columns in which everything is 0.
fn table(name: &str, columns: &[(&str, &[Value])]) -> Vec<String> {
    let rows = columns.iter().map(|(_, cells)| cells.len()).max().unwrap_or(0);
    if rows == 0 {
        return vec![format!("{name}: none")];
    }
    let told = |(name, cells): &&(&str, &[Value])| {
        *name == "id" || cells.iter().any(|cell| cell.as_u64() != Some(0))
    };
    let shown: Vec<(&str, Vec<String>)> = columns
        .iter()
        .filter(told)
        .map(|(name, cells)| (*name, cells.iter().map(|value| cell(name, value)).collect()))
        .collect();
    let mut lines = vec![format!("{name}: {rows}")];
    let mut line = |text: &dyn Fn(&str, &[String]) -> String| {
        let cells = shown.iter().map(|(name, cells)| {
            let width = cells.iter().map(String::len).chain([name.len()]).max().unwrap_or(0);
            format!("{:>width$}", text(name, cells))
        });
        lines.push(format!("  {}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_owned());
    };
    line(&|name, _| name.to_owned());
    for row in 0..rows {
        line(&|_, cells| cells.get(row).cloned().unwrap_or_default());
    }
    lines
}

/// One value; the numbers that mean "none" as words.
fn cell(name: &str, value: &Value) -> String {
    match value.as_u64() {
        Some(u64::MAX) => "never".to_owned(),
        Some(number) if name == "parent" && number == u64::from(u32::MAX) => "none".to_owned(),
        _ => match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn views_are_tables_without_columns_of_zeros() {
        let view = json!({"schedule": {
            "now": 5, "idle_since": u64::MAX, "memory": {"block_size": 16, "free_blocks": 2},
            "running": {"id": [1, 20], "tenant": [0, 0], "computed_tokens": [300, 4]},
            "waiting": {"id": [], "tenant": []},
        }});
        let expected = [
            "schedule: now 5, idle_since never",
            "memory: block_size 16, free_blocks 2",
            "running: 2",
            "  id  computed_tokens",
            "   1              300",
            "  20                4",
            "waiting: none",
        ];
        assert_eq!(call(&view), expected);
    }

    #[test]
    fn answers_are_shown_whatever_their_form() {
        let plan = json!({"run": [7, 8], "tokens": [64], "preempt": [], "wake": u64::MAX});
        let expected = ["plan: wake never", "plan: 2", "  run  tokens", "    7      64", "    8"];
        assert_eq!(value("plan", &plan), expected);
        assert_eq!(value("answer", &json!("wait")), ["answer: wait"]);
        assert_eq!(value("answer", &json!([3, 4])), ["answer: [3,4]"]);
        assert_eq!(call(&json!("lifecycle")), ["call: lifecycle"]);
    }
}
