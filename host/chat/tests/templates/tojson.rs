//! `tojson` writes what Python's does.

use serde_json::json;

use crate::render;

/// The texts are Python's.
#[test]
fn tojson_takes_the_options_that_python_has() {
    let messages =
        json!([{"b": ["a, b: \"c\"", 1.5, []], "a": {"z": null, "y": "\u{e9}\u{1f600}\u{7f}\n<"}}]);
    let indented = "{\n  \"a\" = {\n    \"y\" = 1;\n    \"x\" = []\n  }\n}";
    for (options, json) in [
        ("", r#"{"b": ["a, b: \"c\"", 1.5, []], "a": {"z": null, "y": "é😀\x7f\n<"}}"#),
        ("separators=(',', ':')", r#"{"b":["a, b: \"c\"",1.5,[]],"a":{"z":null,"y":"é😀\x7f\n<"}}"#),
        ("separators=['; ', '→']", r#"{"b"→["a, b: \"c\""; 1.5; []]; "a"→{"z"→null; "y"→"é😀\x7f\n<"}}"#),
        ("sort_keys=true", r#"{"a": {"y": "é😀\x7f\n<", "z": null}, "b": ["a, b: \"c\"", 1.5, []]}"#),
        (
            "ensure_ascii=true",
            r#"{"b": ["a, b: \"c\"", 1.5, []], "a": {"z": null, "y": "\u00e9\ud83d\ude00\u007f\n<"}}"#,
        ),
        (
            "ensure_ascii=true, sort_keys=true, separators=('→', ':')",
            r#"{"a":{"y":"\u00e9\ud83d\ude00\u007f\n<"→"z":null}→"b":["a, b: \"c\""→1.5→[]]}"#,
        ),
        (
            "ensure_ascii=false, sort_keys=false, separators=none, indent=none",
            r#"{"b": ["a, b: \"c\"", 1.5, []], "a": {"z": null, "y": "é😀\x7f\n<"}}"#,
        ),
    ] {
        let template = format!("{{{{ messages[0] | tojson({options}) }}}}");
        let json = json.replace(r"\x7f", "\u{7f}");
        assert_eq!(render(&template, &messages).as_deref(), Ok(json.as_str()), "{options}");
    }
    let template = "{{ {'a': {'y': 1, 'x': []}} | tojson(indent=2, separators=(';', ' = ')) }}";
    assert_eq!(render(template, &messages).as_deref(), Ok(indented));
    for (placed, named) in [
        ("true", "ensure_ascii=true"),
        ("false, 2", "indent=2"),
        ("false, none, (',', ':'), true", "separators=(',', ':'), sort_keys=true"),
        ("indent=true", "indent=1"),
        ("true, indent=2", "ensure_ascii=true, indent=2"),
    ] {
        let [placed, named] = [placed, named].map(|options| {
            render(&format!("{{{{ messages[0] | tojson({options}) }}}}"), &messages).expect(options)
        });
        assert_eq!(placed, named);
    }
    for (options, why) in [
        ("true, 2, none, true, true", "four options"),
        ("true, ensure_ascii=true", "unknown keyword argument 'ensure_ascii'"),
        ("separator=(',', ':')", "unknown keyword argument 'separator'"),
        ("separators=(',',)", "must be two texts"),
        ("separators=(1, 2)", "must be two texts"),
        ("separators=7", "must be two texts"),
    ] {
        let error = render(&format!("{{{{ 1 | tojson({options}) }}}}"), &messages).expect_err(options);
        assert!(error.contains(why), "{options}: {error}");
    }
}

/// The texts are Python's.
#[test]
fn tojson_writes_small_and_large_numbers_as_python_does() {
    for (number, json) in [
        (json!(0.001), "0.001"),
        (json!(0.0001), "0.0001"),
        (json!(0.000_123_4), "0.0001234"),
        (json!(0.000_099), "9.9e-05"),
        (json!(-0.000_01), "-1e-05"),
        (json!(1.25e-9), "1.25e-09"),
        (json!(5e-324), "5e-324"),
        (json!(0.0), "0.0"),
        (json!(-0.0), "-0.0"),
        (json!(1e15), "1000000000000000.0"),
        (json!(1e16), "1e+16"),
        (json!(-1.5e300), "-1.5e+300"),
        (json!(0), "0"),
        (json!(-12), "-12"),
    ] {
        let text = json!({"e-5": ["0.00001 1e-5", number], "x": number});
        let whole = format!(r#"{{"e-5": ["0.00001 1e-5", {json}], "x": {json}}}"#);
        assert_eq!(render("{{ messages[0] | tojson }}", &json!([text])), Ok(whole), "{number}");
        let close = format!(r#"{{"e-5":["0.00001 1e-5",{json}],"x":{json}}}"#);
        let template = "{{ messages[0] | tojson(separators=(',', ':')) }}";
        assert_eq!(render(template, &json!([text])), Ok(close), "{number}");
    }
}
