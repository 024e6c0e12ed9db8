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
fn files_may_leave_out_what_makes_little_difference() {
    let without = |text: String, fields: &[&str]| {
        fields.iter().fold(text, |text, field| {
            assert!(text.contains(field), "{text}");
            text.replacen(field, "", 1)
        })
    };
    let known = Hardware::named("h100").unwrap();
    let fields = [
        r#""attention_efficiency":0.39,"#,
        r#""cache_efficiency":0.8,"#,
        r#""layer_us":17.0,"#,
        r#""many_tokens_layer_us":36.0,"#,
        r#","host_bandwidth":10000000000.0"#,
    ];
    let text = without(serde_json::to_string(&known).unwrap(), &fields);
    let plain = Hardware {
        attention_efficiency: 1.0,
        cache_efficiency: 1.0,
        layer_us: 0.0,
        many_tokens_layer_us: 0.0,
        ..known
    };
    assert_eq!(Hardware::from_json(&text).unwrap(), plain);
    // 2 MiB at 10 GB/s.
    assert!((209.0..210.0).contains(&of("h100", "8b").copy_us(16)));
    let shape = ModelShape::named("8b").unwrap();
    let fields = [r#""output_weights":525300000.0,"#, r#""embedding_weights":525300000.0,"#];
    let text = without(serde_json::to_string(&shape).unwrap(), &fields);
    let read = ModelShape::from_json(&text).unwrap();
    assert_eq!((read.layer_weights(), read.output_weights), (shape.weights, 0.0), "all are multiplied");
}

#[test]
fn numbers_out_of_range_are_named() {
    let device = serde_json::to_string(&Hardware::named("l4").unwrap()).unwrap();
    for (good, bad, says) in [
        (
            r#""compute_efficiency":0.67"#,
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
    for (good, bad, says) in [
        (r#""layers":32"#, r#""layers":0"#, "`layers` is 0, not from 1 to 65536"),
        (
            r#""embedding_weights":525300000.0"#,
            r#""embedding_weights":8e9"#,
            "`embedding_weights` is 8000000000, not from 0 to 7504700000",
        ),
    ] {
        assert!(shape.contains(good), "{shape}");
        let error = ModelShape::from_json(&shape.replacen(good, bad, 1)).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

fn of(hardware: &str, model: &str) -> Roofline {
    let (hardware, model) = (Hardware::named(hardware).unwrap(), ModelShape::named(model).unwrap());
    Roofline { hardware, model }
}

#[test]
fn decode_is_bound_by_memory_and_prefill_by_arithmetic() {
    let profile = of("h100", "8b");
    let one = profile.step_us(&Work::decode(1.0, 500.0));
    let [some, many] = [8.0, 32.0].map(|rows| profile.step_us(&Work::decode(rows, 500.0)));
    // 15 GB at 87 % of 3.35 TB/s take 5.1 ms, and 32 layers 0.5.
    assert!((5_700.0..5_800.0).contains(&one), "{one}");
    // Seven more sequences add little but their caches, and more than eight also kernels that wait for one another.
    assert!(some < 1.05 * one, "{some}");
    assert!((1.2 * one..1.3 * one).contains(&many), "{many}");
    let prompt = Work::chunk(4_096.0, 4_096.0);
    assert!(profile.step_us(&prompt) > 10.0 * one);
}

#[test]
fn output_projection_is_read_where_tokens_are_sampled() {
    let profile = of("h100", "8b");
    let inside = Work::chunk(64.0, 64.0);
    let last = Work { drawn: 1.0, ..inside };
    // 1 GB at 87 % of 3.35 TB/s.
    let more = profile.step_us(&last) - profile.step_us(&inside);
    assert!((360.0..362.0).contains(&more), "{more}");
    let from_the_prompt_cache = Work { rows: 1.0, drawn: 1.0, ..Work::default() };
    assert_eq!(profile.step_us(&from_the_prompt_cache), 20.0);
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
