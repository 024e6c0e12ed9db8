//! What clients may send stays within the sandbox's limits or ends there; honest grammars stay within them.

use std::sync::OnceLock;

use infer_grammar::{Rehearsal, STACK_BYTES, limits};
use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

fn check(grammar: TopLevelGrammar) -> Result<usize, String> {
    static REHEARSAL: OnceLock<Rehearsal> = OnceLock::new();
    let rehearsal = REHEARSAL.get_or_init(|| Rehearsal::new(None).expect("the module compiles"));
    let limits = limits();
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        thread
            .spawn_scoped(scope, || rehearsal.check(&limits, &grammar))
            .unwrap()
            .join()
            .unwrap()
            .map_err(|unfit| unfit.to_string())
    })
}

/// A schema with the option that the host adds.
fn schema(mut schema: Value) -> TopLevelGrammar {
    schema["x-guidance"] = json!({"coerce_one_of": true});
    TopLevelGrammar::from_json_schema(schema)
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("n{n}")).collect()
}

fn properties(count: usize, schema: &Value) -> Value {
    names(count).into_iter().map(|name| (name, schema.clone())).collect::<Map<_, _>>().into()
}

/// Calls of functions of ten fields, as the server writes them.
fn calls(count: usize) -> String {
    let item = json!({"type": "object", "properties": {"id": {"type": "integer"}, "label": {"type": "string"}},
        "required": ["id"], "additionalProperties": false});
    let mut fields = properties(9, &json!({"type": "string", "description": "A field.", "maxLength": 99}));
    fields["items"] = json!({"type": "array", "items": {"$ref": "#/$defs/item"}});
    let schema = json!({"type": "object", "$defs": {"item": item}, "properties": fields, "required": names(5),
        "additionalProperties": false, "x-guidance": {"whitespace_pattern": r"( |\r?\n[ \t]{0,40})",
            "coerce_one_of": true, "lenient": true}});
    let arguments: String = (0..count).map(|at| format!("arguments_{at}: %json {schema}\n")).collect();
    let call =
        |at: usize| format!(r#"call_{at}: "{{\"name\": \"f{at}\", \"arguments\": " arguments_{at} "}}""#);
    let calls: Vec<String> = (0..count).map(call).collect();
    let rules: Vec<String> = (0..count).map(|at| format!("call_{at}")).collect();
    format!(
        "{arguments}{}\nobject: {}\nstart: tagged (\"\\n\" tagged)*\n\
         tagged: <tool_call> \"\\n\" object \"\\n\" </tool_call>\n",
        calls.join("\n"),
        rules.join(" | ")
    )
}

#[test]
fn grammars_without_a_text_are_called_that() {
    let circle = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}});
    for grammar in [schema(circle), TopLevelGrammar::from_lark("start: start start".to_owned())] {
        assert_eq!(check(grammar), Err("no text can satisfy it".to_owned()));
    }
}

#[test]
fn hostile_grammars_end_at_a_limit() {
    let heavy = json!({"type": "object", "required": names(10_000)});
    let patterns = |count: usize, longer: &str| -> Map<String, Value> {
        (0..count).map(|n| (format!("^{n}{longer}-$"), Value::Bool(true))).collect()
    };
    let long = "x".repeat(3_000);
    let outer = json!({"type": "object", "required": names(50),
        "patternProperties": {format!("^a{long}$"): true, format!("^b{long}$"): true}});
    for (name, hostile) in [
        ("names by alternatives", json!({"required": names(20_000), "anyOf": vec![true; 10_000]})),
        (
            "names by types said again",
            json!({"type": vec!["object"; 220], "required": names(1_400), "allOf": [], "minProperties": 0}),
        ),
        (
            "properties by patterns",
            json!({"additionalProperties": heavy, "allOf": [], "patternProperties": patterns(60, "")}),
        ),
        (
            "alternatives by alternatives",
            json!({"oneOf": (0..900).map(|n| json!({"required": [format!("r{n}")]})).collect::<Vec<_>>(),
                "allOf": [outer]}),
        ),
        (
            "a target by its references",
            json!({"$defs": {"t": heavy}, "anyOf": vec![json!({"$ref": "#/$defs/t", "minProperties": 1}); 5_000]}),
        ),
        ("patterns by patterns", json!({"patternProperties": patterns(2_000, "")})),
        (
            "more symbols than the compiler can number",
            json!({"type": "object", "required": names(80),
                "oneOf": (0..600).map(|n| json!({"type": "object", "properties": {"t": {"const": n}}, "required": ["t"]}))
                    .collect::<Vec<_>>()}),
        ),
        (
            "a chain of references",
            (0..8_000).fold(json!({"$ref": "#/$defs/n0", "$defs": {}}), |mut all, n| {
                all["$defs"][format!("n{n}")] = json!({"$ref": format!("#/$defs/n{}", n + 1)});
                all
            }),
        ),
    ] {
        let error = check(schema(hostile)).expect_err(name);
        assert!(error.len() < 200 && !error.contains("panicked"), "{name}: {error}");
        println!("{name}: {error}");
    }
}

#[test]
fn honest_grammars_stay_within_the_limits() {
    let field = json!({"anyOf": [{"type": "string", "maxLength": 99}, {"type": "null"}], "default": null});
    let record = json!({"type": "object", "properties": properties(300, &field), "required": names(300),
        "additionalProperties": false});
    let node = json!({"type": "object", "properties": {"value": {"type": ["integer", "null"]},
        "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "required": ["value"]});
    for (name, honest) in [
        ("a record", record.clone()),
        ("one of many records", json!({"anyOf": vec![record.clone(); 20]})),
        (
            "records that inherit",
            json!({"$defs": {"base": record}, "allOf": [{"$ref": "#/$defs/base"},
                {"$ref": "#/$defs/base"}, {"properties": properties(50, &field)}]}),
        ),
        ("a tree", json!({"$defs": {"node": node}, "$ref": "#/$defs/node"})),
        ("a long enum", json!({"type": "string", "enum": names(20_000)})),
        (
            "fields of either kind",
            json!({"type": "object", "properties": properties(100, &json!(true)),
                "anyOf": names(100).iter().map(|name| json!({"required": [name]})).collect::<Vec<_>>()}),
        ),
        (
            "extensions",
            json!({"type": "object", "properties": properties(100, &field),
                "patternProperties": {"^x-": true, "^y-": {"type": "string"}}}),
        ),
    ] {
        let bytes = check(schema(honest)).unwrap_or_else(|error| panic!("{name}: {error}"));
        println!("{name}: {bytes} bytes");
    }
    for regex in ["a+b", &"(ab|cd)*x".repeat(400), "[a-z]{1,1000}"] {
        check(TopLevelGrammar::from_regex(regex)).unwrap_or_else(|error| panic!("{regex}: {error}"));
    }
    let lark = |text: String| check(TopLevelGrammar::from_lark(text));
    lark(format!("start: {}", (0..1_000).map(|n| format!("\"choice {n}\"")).collect::<Vec<_>>().join(" | ")))
        .unwrap();
    lark("start: <tool_call> \"{}\" </tool_call>".to_owned()).unwrap();
    lark("start: (<|start|> \"a\")? <|channel|> \"b \" <|constrain|> \"json\" <|message|> \"{}\"".to_owned())
        .unwrap();
    lark(calls(64)).unwrap();
    lark("start: \"[\" (start (\",\" start)*)? \"]\" | NUMBER\nNUMBER: /-?[0-9]+/".to_owned()).unwrap();
}

#[test]
fn what_is_wrong_with_a_grammar_is_said_in_the_compilers_words() {
    for (grammar, words) in [
        (schema(json!({"type": "nothing"})), "nothing"),
        (schema(json!({"$ref": "#/nowhere"})), "nowhere"),
        (schema(json!({"allOf": [{"type": "string"}, {"type": "number"}]})), "Unsatisfiable"),
        (TopLevelGrammar::from_regex("a("), "regex"),
        (TopLevelGrammar::from_lark("start: nothing".to_owned()), "nothing"),
    ] {
        let error = check(grammar).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}
