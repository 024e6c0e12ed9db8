//! What templates may not do, and how much of what they may.

use serde_json::json;

use crate::{common, render};

#[test]
fn what_a_template_may_not_do_is_an_error() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}";
    let large = "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}\
        {% for a in range(20) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}x";
    for (template, reason) in [
        (endless, "too many steps"),
        (large, "more than 16777216 bytes"),
        ("{{ raise_exception('no such role') }}", "no such role"),
        ("{{ open('/etc/passwd') }}", "unknown function"),
        ("{% include '/etc/passwd' %}", "not found"),
        ("{% for %}", "has an error"),
    ] {
        let error = render(template, &json!([])).expect_err(template);
        assert!(error.contains(reason), "{template}: {error}");
    }
}

/// Some templates write the schemas of tools out as TypeScript or Python.
#[test]
fn instructions_are_for_tools_as_well_as_for_messages() {
    let text = "{% for part in tools or documents or messages %}{% for i in range(1000) %}{% set x = i %}{% endfor %}\
        {{ part }}{% endfor %}";
    let template = common::template(text).expect("sound");
    let many = vec!["x"; 100];
    for name in ["tools", "documents"] {
        let rendered = template.render_with(&json!([]), true, &common::variables(&json!({name: many})));
        assert_eq!(rendered.expect(name), "x".repeat(100));
    }
    assert_eq!(template.render(&json!(many), true).expect("messages"), "x".repeat(100));
    let endless = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}";
    let endless = common::template(endless).expect("sound");
    let refused = endless.render_with(&json!([]), true, &common::variables(&json!({"tools": many})));
    assert!(refused.expect_err("that takes too long").to_string().contains("too many steps"));
}
