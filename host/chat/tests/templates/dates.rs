//! Templates that ask for the date.

use serde_json::{Value as Json, json};

use crate::{common, render, two_templates};

#[test]
fn templates_without_a_fallback_are_told_the_date() {
    let on = |day: u32, text: &str, variables: Json| {
        let template = common::template(text).expect("sound").on_day(day);
        template.render_with(&json!([]), true, &common::variables(&variables))
    };
    // As Mistral-Small-24B-Instruct-2501's begins.
    let mistral = "{%- set today = strftime_now(\"%Y-%m-%d\") %}The current date is {{ today }}.";
    assert_eq!(on(20_118, mistral, json!({})).as_deref(), Ok("The current date is 2025-01-30."));
    assert_eq!(on(20_119, mistral, json!({})).as_deref(), Ok("The current date is 2025-01-31."));
    let comment = "{# strftime_now is new #}{{ strftime_now ('%Y') }}{# unless strftime_now #}";
    assert_eq!(on(20_118, comment, json!({})).as_deref(), Ok("2025"), "comments ask nothing");
    let same = on(20_118, mistral, json!({"strftime_now": 0}));
    assert_eq!(same.as_deref(), Ok("The current date is 2025-01-30."), "no variable stands for it");
    let error = on(20_118, "{{ strftime_now('%Q') }}", json!({})).expect_err("nobody knows that").to_string();
    assert!(error.contains("no directive `%Q`"), "{error}");

    for fallback in [
        "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}ever{% endif %}",
        "{% if strftime_now is not defined %}ever{% else %}{{ strftime_now('%Y') }}{% endif %}",
        "{% if strftime_now  is  defined %}{{ strftime_now('%Y') }}{% else %}ever{% endif %}",
        "{%- if strftime_now -%}{{ strftime_now('%Y') }}{% else %}ever{% endif %}",
        "{{ strftime_now('%Y') if strftime_now else 'ever' }}",
    ] {
        for variables in [json!({}), json!({"strftime_now": 0})] {
            assert_eq!(on(20_118, fallback, variables).as_deref(), Ok("ever"), "{fallback}");
        }
    }

    let year = render("{{ strftime_now('%Y') }}", &json!([])).expect("the clock's");
    assert!(year.parse::<u32>().is_ok_and(|year| year >= 2025), "{year}");
}

#[test]
fn both_of_two_templates_are_told_the_day() {
    let [plain, tools] = ["{{ strftime_now('%F') }}", "{{ strftime_now('%F') }} {{ tools[0] }}"];
    let template = two_templates(plain, tools).on_day(20_118);
    for (variables, prompt) in [(json!({}), "2025-01-30"), (json!({"tools": ["a"]}), "2025-01-30 a")] {
        let rendered = template.render_with(&json!([]), false, &common::variables(&variables));
        assert_eq!(rendered.as_deref(), Ok(prompt), "{variables}");
    }
}
