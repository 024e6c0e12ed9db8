//! What the authors' guide shows is what `infer policy new` writes.

const GUIDE: &str = include_str!("../../../../plugins/README.md");
const TEMPLATE: &str = include_str!("../../../../plugins/templates/scheduler/src/lib.rs");

#[test]
fn the_policy_that_the_guide_walks_through_is_the_template() {
    let shown: Vec<&str> =
        GUIDE.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(shown.len(), 1, "one policy");
    assert!(
        TEMPLATE.contains(shown[0]),
        "plugins/README.md shows another policy than plugins/templates/scheduler"
    );
}
