//! Templates that want everything: each ends in an error that names the limit, and whoever comes next is served.

use serde_json::{Value as Json, json};

use crate::common::{self, template};

/// Renders what the messages ask for if there is one, a greeting if there is none.
fn on_request(program: &str) -> String {
    format!("{{% if messages %}}{program}{{% endif %}}hello")
}

/// A loop that makes a value `x` of what `x` was.
fn again(times: u32, from: &str, step: &str) -> String {
    on_request(&format!(
        "{{% set ns = namespace(x={from}) %}}{{% for turn in range({times}) %}}{{% set ns.x = {step} %}}{{% endfor %}}\
         {{{{ ns.x | length }}}}"
    ))
}

const MEMORY: &str = "it needs more than 64 MiB of memory";
const STEPS: &str = "it needs too many steps";
const LARGE: &str = "repeated string is too large";
const DEEP: &str = "it is nested too deeply";

fn hostile() -> Vec<(&'static str, String, &'static str)> {
    let text = "'0123456789abcdef'";
    let turns = "[1, 2, 3, 4]";
    let nested = |open: &str, close: &str| again(90_000, "[]", &format!("{open}ns.x{close}"));
    let shown = |text: String, how: &str| text.replace("ns.x | length", how);
    vec![
        ("a text by ~", again(40, text, "ns.x ~ ns.x"), MEMORY),
        ("a text by +", again(40, text, "ns.x + ns.x"), MEMORY),
        ("a text by *", again(40, text, "ns.x * 1000"), LARGE),
        ("a width of 31 bits", on_request("{{ '%2000000000d' | format(1) }}"), MEMORY),
        ("a width of 32 bits", on_request("{{ '%4000000000d' | format(1) }}"), MEMORY),
        ("a count", on_request("{{ [1] | batch(3000000000, 0) | list }}"), MEMORY),
        ("a text by one *", on_request("{{ 'x' * 3000000000 }}"), LARGE),
        ("a list by +", again(40, turns, "(ns.x + ns.x) | list"), MEMORY),
        ("a list by *", again(40, turns, "(ns.x * 100) | list"), MEMORY),
        ("a list by batch", again(40, turns, "(ns.x + ns.x) | batch(1) | list"), MEMORY),
        ("a filter: join", again(40, turns, "[ns.x | join('0123'), ns.x | join('4567')]"), MEMORY),
        ("a filter: replace", again(40, text, "(ns.x ~ ns.x) | replace('ab', 'xyz')"), MEMORY),
        ("a method: replace", again(40, text, "ns.x.replace('', 'xx')"), MEMORY),
        ("a filter: format", again(40, text, "'%s%s' | format(ns.x, ns.x)"), MEMORY),
        ("a filter: indent", again(40, "'a\\nb\\nc\\nd'", "(ns.x ~ '\\n' ~ ns.x) | indent(100)"), MEMORY),
        ("a filter: tojson", shown(again(18, text, "ns.x ~ ns.x"), "([ns.x] * 20) | tojson"), MEMORY),
        ("a filter: list", shown(again(18, text, "ns.x ~ ns.x"), "[ns.x | list, ns.x | list]"), MEMORY),
        ("a filter: split", again(40, text, "(ns.x | string ~ ns.x | string).split('')"), MEMORY),
        (
            "a block",
            on_request(
                "{% set ns = namespace(x='0123456789abcdef') %}{% for turn in range(40) %}\
             {% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}{% endfor %}",
            ),
            MEMORY,
        ),
        (
            "an endless loop",
            on_request("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
            STEPS,
        ),
        // Few instructions, each of which compares a hundred thousand values.
        (
            "a search in a list",
            on_request(
                "{% set all = range(100000) | list %}{% for a in range(20000) %}{% if -1 in all %}{% endif %}{% endfor %}",
            ),
            STEPS,
        ),
        (
            "a recursive macro",
            on_request("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"),
            "recursion limit",
        ),
        (
            "a recursive loop",
            on_request(
                "{% set ns = namespace(x=[]) %}{% for a in range(2000) %}{% set ns.x = [ns.x] %}{% endfor %}\
             {% for x in ns.x recursive %}{{ loop(x) }}{% endfor %}",
            ),
            "recursion limit",
        ),
        ("deep lists, shown", shown(nested("[", "]"), "ns.x"), DEEP),
        ("deep lists as JSON", shown(nested("[", "]"), "ns.x | tojson"), DEEP),
        ("deep objects as JSON", shown(nested("{'a': ", "}"), "ns.x | tojson"), DEEP),
        ("deep lists, compared", shown(nested("[", "]"), "ns.x == [ns.x]"), DEEP),
        ("deep lists, forgotten", nested("[", "]"), DEEP),
    ]
}

/// Fuel goes by the messages, so it takes some to nest deeply.
fn messages() -> Json {
    vec![json!({"role": "user", "content": "x"}); 100].into()
}

#[test]
fn every_limit_is_an_error_that_names_it_and_the_next_render_works() {
    for (name, text, reason) in hostile() {
        let template = template(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        for _ in 0..2 {
            let error = template.render(&messages(), true).expect_err(name).to_string();
            assert!(error.contains(reason), "{name}: {error}");
            assert_eq!(template.render(&json!([]), true).as_deref(), Ok("hello"), "{name}");
        }
    }
}

#[test]
fn templates_that_can_not_be_read_are_refused() {
    let brackets =
        |open: &str, close: &str| format!("{{{{ {}1{} }}}}", open.repeat(100_000), close.repeat(100_000));
    for (name, text, reason) in [
        ("parentheses", brackets("(", ")"), "template exceeds maximum recursion limits"),
        ("lists", brackets("[", "]"), "template exceeds maximum recursion limits"),
        ("blocks", "{% if 1 %}".repeat(50_000), "template exceeds maximum recursion limits"),
        ("attributes", format!("{{{{ x{} }}}}", ".y".repeat(400_000)), DEEP),
        ("operators", format!("{{{{ x{} }}}}", " ~ y".repeat(200_000)), DEEP),
        ("length", "x".repeat((1 << 20) + 1), "at most 1048576 are allowed"),
    ] {
        let error = template(&text).err().unwrap_or_else(|| panic!("{name} was taken")).to_string();
        assert!(error.contains(reason), "{name}: {error}");
    }
    // Many things one after the other are none too many.
    for text in ["{{ x }}".repeat(100_000), "{% if x %}y{% endif %}".repeat(40_000), "x".repeat(1 << 20)] {
        let prompt = template(&text).expect("it is sound").render(&messages(), true);
        assert_eq!(
            prompt.map(|prompt| prompt.len()).ok(),
            Some(if text.starts_with('x') { 1 << 20 } else { 0 })
        );
    }
}

#[test]
fn what_a_client_sends_has_limits_of_its_own() {
    let template = template("{% for m in messages %}{{ m.content }}{% endfor %}{{ x | tojson | length }}")
        .expect("sound");
    let deep = |levels: u32| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    let with = |value: Json| template.render_with(&json!([]), true, &common::variables(&json!({"x": value})));
    assert_eq!(with(deep(200)).as_deref(), Ok("401"));
    let error = with(deep(300)).expect_err("nobody means that").to_string();
    assert!(error.contains("they are nested too deeply"), "{error}");
    let error = with(json!("x".repeat(65 << 20))).expect_err("nobody means that").to_string();
    assert!(error.contains("they have more than 64 MiB"), "{error}");
    let error =
        template.render(&json!([{"content": "x".repeat(17 << 20)}]), true).expect_err("too long").to_string();
    assert!(error.contains("more than 16777216 bytes"), "{error}");
    assert_eq!(with(json!(null)).as_deref(), Ok("4"));
}

#[test]
fn a_refusal_does_not_repeat_a_conversation() {
    let template = template("{{ raise_exception(messages[0].content) }}").expect("sound");
    let error = template.render(&json!([{"content": "é".repeat(1 << 20)}]), true).expect_err("it refuses");
    assert!(error.message.contains("ééé") && error.message.len() < 5_000, "{}", error.message.len());
}

#[test]
fn threads_render_at_once_and_get_what_is_theirs() {
    let template = template("{% for m in messages %}[{{ m }}]{% endfor %}").expect("sound");
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let template = &template;
            scope.spawn(move || {
                for turn in 0..200 {
                    let messages = json!(vec![format!("{thread} {turn}"); turn % 7]);
                    let expected = format!("[{thread} {turn}]").repeat(turn % 7);
                    assert_eq!(template.render(&messages, true).as_deref(), Ok(expected.as_str()));
                }
            });
        }
    });
}
