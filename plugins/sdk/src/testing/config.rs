//! Checks a policy's schema against what its configuration really accepts.

use serde::Serialize;

use crate::{Policy, parse_config};

/// Panics unless the schema names exactly the keys of the configuration with their defaults, an
/// unknown key is refused by name, and `{}` makes a policy.
pub fn check_config<P: Policy>()
where
    P::Config: Serialize,
{
    let schema: serde_json::Value = serde_json::from_str(P::CONFIG_SCHEMA).expect("the schema is JSON");
    assert_eq!(schema["type"], "object", "the schema describes an object");
    assert_eq!(schema["additionalProperties"], false, "the schema allows no other keys");
    let defaults = serde_json::to_value(P::Config::default()).expect("a configuration is JSON");
    let defaults = defaults.as_object().expect("a configuration is an object");
    let properties = schema["properties"].as_object().expect("the schema has properties");
    let keys = |map: &serde_json::Map<String, serde_json::Value>| map.keys().cloned().collect::<Vec<_>>();
    let (mut described, mut taken) = (keys(properties), keys(defaults));
    described.sort();
    taken.sort();
    assert_eq!(described, taken, "keys of the schema, and of the configuration");
    for (key, default) in defaults {
        let property = &properties[key];
        let equal = match (property["default"].as_f64(), default.as_f64()) {
            (Some(described), Some(real)) => described == real,
            _ => property["default"] == *default,
        };
        assert!(equal, "default of `{key}`: the schema says {}, it is {default}", property["default"]);
        assert!(property["description"].is_string(), "`{key}` has a description");
    }
    for json in ["", "{}"] {
        let config = parse_config(json).expect("the defaults are valid");
        assert!(P::new(config).is_ok(), "the defaults make a policy");
    }
    let refused = parse_config::<P::Config>(r#"{"no_such_key": 1}"#).err().expect("unknown keys are refused");
    assert!(refused.contains("no_such_key"), "{refused}");
    assert!(!P::NAME.is_empty() && !P::VERSION.is_empty() && !P::DESCRIPTION.is_empty());
}
