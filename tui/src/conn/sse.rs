//! Reads the events of the admin plane's feed: names and data in, [`AdminEvent`]s out.

use infer_api::admin::{AdminEvent, Change, State};

use super::ConnError;

/// Names of the events that this console knows.
const KNOWN: [&str; 9] =
    ["snapshot", "change", "swap", "fault", "canary", "refusal", "failure", "preemption", "lagged"];

/// Returns the event with this name and data; the data may also hold both, in the tagged form of [`AdminEvent`].
/// `None` for one without data, such as a comment, and for an unknown one, because a newer host may send more kinds.
///
/// # Errors
/// [`ConnError::Protocol`] if a known event has an unexpected shape.
pub fn decode(name: &str, data: &str) -> Result<Option<AdminEvent>, ConnError> {
    if data.is_empty() {
        return Ok(None);
    }
    // Snapshots and changes are most of the traffic: parse them straight into their type.
    if name == "snapshot"
        && let Ok(state) = serde_json::from_str::<State>(data)
    {
        return Ok(Some(AdminEvent::Snapshot(Box::new(state))));
    }
    if name == "change"
        && let Ok(change) = serde_json::from_str::<Change>(data)
    {
        return Ok(Some(AdminEvent::Change(Box::new(change))));
    }
    let value: serde_json::Value = serde_json::from_str(data)
        .map_err(|error| ConnError::Protocol(format!("event `{name}` is not JSON: {error}")))?;
    let tagged = value.get("event").is_some() && value.get("data").is_some();
    let tagged = if tagged { value } else { serde_json::json!({"event": name, "data": value}) };
    let name = tagged["event"].as_str().unwrap_or_default().to_owned();
    if !KNOWN.contains(&name.as_str()) {
        return Ok(None);
    }
    serde_json::from_value(tagged)
        .map(Some)
        .map_err(|error| ConnError::Protocol(format!("event `{name}` has an unexpected shape: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_an_event_are_decoded_and_unknown_events_skipped() {
        let want = Some(AdminEvent::Preemption { id: 7 });
        assert_eq!(decode("preemption", r#"{"id":7}"#).unwrap(), want);
        assert_eq!(decode("preemption", r#"{"event":"preemption","data":{"id":7}}"#).unwrap(), want);
        assert_eq!(decode("weather", "{}").unwrap(), None);
        assert_eq!(decode("", "").unwrap(), None, "a comment");
        assert!(decode("swap", r#"{"kind":1}"#).is_err());
        let state = serde_json::to_string(&State::default()).unwrap();
        assert!(matches!(decode("snapshot", &state).unwrap(), Some(AdminEvent::Snapshot(_))));
    }

    #[test]
    fn events_of_unknown_kinds_in_a_change_are_skipped() {
        let known = AdminEvent::Preemption { id: 7 };
        let mut change = serde_json::to_value(Change::default()).unwrap();
        change["events"] = serde_json::json!([{"event": "weather", "data": {"rain": 1}}, known]);
        let want = AdminEvent::Change(Box::new(Change { events: vec![known], ..Change::default() }));
        assert_eq!(decode("change", &change.to_string()).unwrap(), Some(want));
    }

    #[test]
    fn failed_requests_are_decoded() {
        let failure = AdminEvent::Failure {
            id: 7,
            request_id: "req-7".into(),
            code: "device_fault".into(),
            message: "out of device memory".into(),
        };
        let data = serde_json::to_value(&failure).unwrap()["data"].to_string();
        assert_eq!(decode(failure.name(), &data).unwrap(), Some(failure));
    }
}
