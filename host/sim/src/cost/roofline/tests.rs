//! Named devices and shapes, their files, and what steps of them cost.

use super::*;

#[test]
fn devices_and_shapes_are_read_from_what_is_written() {
    for name in Hardware::NAMES {
        let known = Hardware::named(name).unwrap();
        let text = serde_json::to_string(&known).unwrap();
        assert_eq!(Hardware::from_json(&text).unwrap(), known, "{text}");
    }
    for name in ModelShape::NAMES {
        let known = ModelShape::named(name).unwrap();
        let text = serde_json::to_string(&known).unwrap();
        assert_eq!(ModelShape::from_json(&text).unwrap(), known, "{text}");
    }
}

#[test]
fn a_file_without_a_host_bandwidth_has_the_usual_one() {
    let known = Hardware::named("h100").unwrap();
    let text = serde_json::to_string(&known).unwrap();
    let without = text.replace(r#","host_bandwidth":10000000000.0"#, "");
    assert_ne!(without, text);
    assert_eq!(Hardware::from_json(&without).unwrap(), known);
    // 2 MiB at 10 GB/s.
    assert!((209.0..210.0).contains(&of("h100", "8b").copy_us(16)));
}

#[test]
fn numbers_out_of_range_are_named() {
    let device = serde_json::to_string(&Hardware::named("l4").unwrap()).unwrap();
    for (good, bad, says) in [
        (
            r#""compute_efficiency":0.6"#,
            r#""compute_efficiency":1.6"#,
            "`compute_efficiency` is 1.6, not from 0.001",
        ),
        (r#""flops":121000000000000.0"#, r#""flops":0"#, "`flops` is 0, not from 1000000"),
        (r#""name":"l4""#, r#""name":" ""#, "`name` is empty"),
        (r#""name""#, r#""title""#, "not a device: unknown field `title`"),
    ] {
        assert!(device.contains(good), "{device}");
        let error = Hardware::from_json(&device.replacen(good, bad, 1)).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let shape = serde_json::to_string(&ModelShape::named("8b").unwrap()).unwrap();
    let error = ModelShape::from_json(&shape.replacen(r#""layers":32"#, r#""layers":0"#, 1)).unwrap_err();
    assert!(error.to_string().contains("`layers` is 0, not from 1 to 65536"), "{error}");
}

fn of(hardware: &str, model: &str) -> Roofline {
    let (hardware, model) = (Hardware::named(hardware).unwrap(), ModelShape::named(model).unwrap());
    Roofline { hardware, model }
}

#[test]
fn decode_is_bound_by_memory_and_prefill_by_arithmetic() {
    let profile = of("h100", "8b");
    let one = profile.step_us(&Work::decode(1.0, 500.0));
    let many = profile.step_us(&Work::decode(32.0, 500.0));
    // 16 GB at 80 % of 3.35 TB/s take 6 ms; 31 more sequences add only their caches.
    assert!((6_000.0..6_500.0).contains(&one), "{one}");
    assert!(many < 1.2 * one, "{many}");
    let prompt = Work::chunk(4_096.0, 4_096.0);
    assert!(profile.step_us(&prompt) > 10.0 * one);
}

#[test]
fn pool_is_the_memory_left_by_the_weights() {
    // 72 GB minus 16 GB of weights, at 128 KiB per token.
    let blocks = of("h100", "8b").blocks(16);
    assert!((26_000..28_000).contains(&blocks), "{blocks}");
    assert_eq!(of("l4", "70b").blocks(16), 0);
}

#[test]
fn every_name_is_known() {
    assert!(Hardware::NAMES.iter().all(|name| Hardware::named(name).is_some()));
    assert!(ModelShape::NAMES.iter().all(|name| ModelShape::named(name).is_some()));
    assert!(Hardware::named("abacus").is_none());
}
