//! How large a schema becomes, found out before a compiler makes it so.
//!
//! llguidance multiplies out what stands beside alternatives: each gets a whole copy of the rest. It counts its
//! steps, but a name in `required`, a value of an enum or a schema `true` is none, so that some ten kilobytes can be
//! gigabytes; and it compares every pair of patterns, again with each copy. Here the same is done with shares in
//! place of copies, and what copies would take is paid out of a budget. It need not be exact, and doesn't say
//! what is wrong with a schema: the compiler does.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use serde_json::{Map, Value};

/// What the schemas of one shape may take, in bytes of copies.
const BUDGET: usize = 32 << 20;
/// A step, and a schema without what it holds.
const NODE_BYTES: usize = 64;
/// A name or a text, besides its letters.
const TEXT_BYTES: usize = 96;
/// Two patterns are compared, besides their letters.
const PAIR_COST: usize = 1_000;
/// Schemas within schemas, references followed: both compilers recurse over them.
const MAX_DEPTH: usize = 1_000;
/// Depth at which the compiler gives up an intersection.
const MAX_INTERSECTION: usize = 128;

/// Keywords that say nothing about a value.
const SILENT: &[&str] = &[
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "definitions",
    "description",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
    "x-guidance",
];
/// Keywords that are intersected with all others.
const APPLIED: &[&str] = &["$ref", "allOf", "anyOf", "const", "enum", "oneOf"];
const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

/// Refuses schemas that together would take too much.
///
/// # Errors
/// For whoever wrote them.
pub fn check(schemas: &[Value]) -> Result<(), String> {
    let mut left = BUDGET;
    for root in schemas {
        let mut expansion = Expansion { root, defined: HashMap::new(), left, depth: 0 };
        expansion.schema(root)?;
        left = expansion.left;
    }
    Ok(())
}

/// One schema on its way.
struct Expansion<'a> {
    root: &'a Value,
    /// Targets of references; nothing while they are on their way themselves.
    defined: HashMap<&'a str, Option<Tree<'a>>>,
    left: usize,
    depth: usize,
}

type Tree<'a> = Rc<Node<'a>>;

/// A schema, and what a copy of it takes.
struct Node<'a> {
    form: Form<'a>,
    bytes: usize,
}

enum Form<'a> {
    Any,
    Never,
    /// A value without parts, of a type.
    Plain(&'a str),
    Array {
        first: Vec<Tree<'a>>,
        rest: Tree<'a>,
    },
    Object(Object<'a>),
    Either(Vec<Tree<'a>>),
    Ref(&'a str),
}

struct Object<'a> {
    named: BTreeMap<&'a str, Tree<'a>>,
    patterns: BTreeMap<&'a str, Tree<'a>>,
    rest: Tree<'a>,
    /// Of the names in `required`.
    required_bytes: usize,
}

type Expanded<'a> = Result<Tree<'a>, String>;

impl<'a> Expansion<'a> {
    fn schema(&mut self, value: &'a Value) -> Expanded<'a> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("the schema's references go deeper than {MAX_DEPTH}"));
        }
        let tree = match value {
            Value::Bool(true) => any(),
            Value::Object(members) => self.members(members)?,
            _ => never(),
        };
        self.depth -= 1;
        Ok(tree)
    }

    fn members(&mut self, members: &'a Map<String, Value>) -> Expanded<'a> {
        let mut all = self.own(members)?;
        for (keyword, value) in members {
            let list = || value.as_array().map_or(&[][..], Vec::as_slice);
            match keyword.as_str() {
                "const" => {
                    let value = self.constant(value)?;
                    all = self.intersect(&all, &value, 0)?;
                }
                "enum" => {
                    let options = list().iter().map(|value| self.constant(value));
                    let options = options.collect::<Result<_, _>>()?;
                    let either = self.make(Form::Either(options))?;
                    all = self.intersect(&all, &either, 0)?;
                }
                "anyOf" | "oneOf" => {
                    let options = list().iter().map(|value| self.schema(value)).collect::<Result<_, _>>()?;
                    let either = self.make(Form::Either(options))?;
                    all = self.intersect(&all, &either, 0)?;
                }
                "allOf" => {
                    for value in list() {
                        let other = self.schema(value)?;
                        all = self.intersect(&all, &other, 0)?;
                    }
                }
                "$ref" => {
                    let name = value.as_str().unwrap_or_default();
                    self.define(name)?;
                    let target = self.make(Form::Ref(name))?;
                    all = self.intersect(&all, &target, 0)?;
                }
                _ => {}
            }
        }
        Ok(all)
    }

    /// What a schema says itself: an alternative for each type.
    fn own(&mut self, members: &'a Map<String, Value>) -> Expanded<'a> {
        if members.keys().all(|key| SILENT.contains(&key.as_str()) || APPLIED.contains(&key.as_str())) {
            return Ok(any());
        }
        let types: Vec<&str> = match members.get("type") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
            _ => TYPES.to_vec(),
        };
        let (mut array, mut object) = (None, None);
        let mut options = Vec::with_capacity(types.len());
        for name in types {
            let made = match name {
                "array" => &mut array,
                "object" => &mut object,
                _ => {
                    let text = ["pattern", "format"].into_iter().filter_map(|key| members.get(key)?.as_str());
                    options.push(self.plain(name, text.map(str::len).sum())?);
                    continue;
                }
            };
            // Types that are said again are made again.
            let tree = match made.take() {
                Some(tree) => self.copy(&tree)?,
                None if name == "array" => self.array(members)?,
                None => self.object(members)?,
            };
            options.push(Rc::clone(made.insert(tree)));
        }
        match <[Tree<'a>; 1]>::try_from(options) {
            Ok([only]) => Ok(only),
            Err(options) => self.make(Form::Either(options)),
        }
    }

    fn array(&mut self, members: &'a Map<String, Value>) -> Expanded<'a> {
        let (first, rest) = match (members.get("items"), members.get("additionalItems")) {
            (Some(Value::Array(first)), rest) => (Some(first), rest),
            (rest, _) => (members.get("prefixItems").and_then(Value::as_array), rest),
        };
        let first = first.into_iter().flatten().map(|value| self.schema(value)).collect::<Result<_, _>>()?;
        let rest = rest.map_or_else(|| Ok(any()), |value| self.schema(value))?;
        self.make(Form::Array { first, rest })
    }

    fn object(&mut self, members: &'a Map<String, Value>) -> Expanded<'a> {
        let mut named = self.map(members.get("properties"))?;
        let patterns = self.map(members.get("patternProperties"))?;
        // A property whose name matches a pattern fulfils both.
        if let Some(heaviest) = patterns.values().max_by_key(|tree| tree.bytes) {
            for tree in named.values_mut() {
                let pattern = self.copy(heaviest)?;
                let both = self.intersect(tree, &pattern, 0)?;
                if both.bytes > tree.bytes {
                    *tree = both;
                }
            }
        }
        let rest = members.get("additionalProperties");
        let rest = rest.map_or_else(|| Ok(any()), |value| self.schema(value))?;
        let required = members.get("required").and_then(Value::as_array).into_iter().flatten();
        let required_bytes = required.filter_map(Value::as_str).map(|name| TEXT_BYTES + name.len()).sum();
        self.make(Form::Object(Object { named, patterns, rest, required_bytes }))
    }

    fn map(&mut self, schemas: Option<&'a Value>) -> Result<BTreeMap<&'a str, Tree<'a>>, String> {
        let schemas = schemas.and_then(Value::as_object).into_iter().flatten();
        schemas.map(|(name, value)| Ok((name.as_str(), self.schema(value)?))).collect()
    }

    fn constant(&mut self, value: &'a Value) -> Expanded<'a> {
        match value {
            Value::Null => self.plain("null", 0),
            Value::Bool(_) => self.plain("boolean", 0),
            Value::Number(_) => self.plain("number", 0),
            Value::String(text) => self.plain("string", text.len()),
            Value::Array(items) => {
                let first = items.iter().map(|value| self.constant(value)).collect::<Result<_, _>>()?;
                self.make(Form::Array { first, rest: never() })
            }
            Value::Object(members) => {
                let required_bytes = members.keys().map(|name| TEXT_BYTES + name.len()).sum();
                let named = members.iter().map(|(name, value)| Ok((name.as_str(), self.constant(value)?)));
                let named = named.collect::<Result<_, String>>()?;
                let patterns = BTreeMap::new();
                self.make(Form::Object(Object { named, patterns, rest: never(), required_bytes }))
            }
        }
    }

    /// Makes the target of a reference, unless it is made or on its way.
    fn define(&mut self, name: &'a str) -> Result<(), String> {
        if !self.defined.contains_key(name) {
            self.defined.insert(name, None);
            let tree = match self.target(name) {
                Some(value) => self.schema(value)?,
                None => never(),
            };
            self.defined.insert(name, Some(tree));
        }
        Ok(())
    }

    fn target(&self, name: &str) -> Option<&'a Value> {
        if name == "#" || name == "#/" {
            return Some(self.root);
        }
        name.strip_prefix("#/")?.split('/').try_fold(self.root, |value, part| match value {
            Value::Array(list) => list.get(part.parse::<usize>().ok()?),
            _ => value.get(part),
        })
    }

    /// What fulfils both.
    fn intersect(&mut self, a: &Tree<'a>, b: &Tree<'a>, depth: usize) -> Expanded<'a> {
        self.pay(NODE_BYTES)?;
        if depth > MAX_INTERSECTION {
            return Ok(never());
        }
        match (&a.form, &b.form) {
            (Form::Any, _) => Ok(Rc::clone(b)),
            (_, Form::Any) => Ok(Rc::clone(a)),
            (Form::Never, _) | (_, Form::Never) => Ok(never()),
            (Form::Ref(name), _) => self.intersect_target(name, b, depth + 1),
            (_, Form::Ref(name)) => self.intersect_target(name, a, depth + 1),
            (Form::Either(options), _) => self.distribute(options, b, depth + 1),
            (_, Form::Either(options)) => self.distribute(options, a, depth + 1),
            (Form::Plain(one), Form::Plain(other)) => match same_type(one, other) {
                true => self.plain(one, a.bytes + b.bytes),
                false => Ok(never()),
            },
            (Form::Array { first: a, rest: a_rest }, Form::Array { first: b, rest: b_rest }) => {
                let mut first = Vec::new();
                for at in 0..a.len().max(b.len()) {
                    let (a, b) = (self.item(a, a_rest, at)?, self.item(b, b_rest, at)?);
                    first.push(self.intersect(&a, &b, depth + 1)?);
                }
                let rest = self.intersect(a_rest, b_rest, depth + 1)?;
                self.make(Form::Array { first, rest })
            }
            (Form::Object(a), Form::Object(b)) => self.intersect_objects(a, b, depth + 1),
            _ => Ok(never()),
        }
    }

    fn intersect_target(&mut self, name: &str, other: &Tree<'a>, depth: usize) -> Expanded<'a> {
        // A target that is on its way can't be copied: the compiler refuses that.
        let Some(Some(target)) = self.defined.get(name).cloned() else { return Ok(never()) };
        let target = self.copy(&target)?;
        self.intersect(&target, other, depth)
    }

    /// Each alternative with a copy of what stands beside them.
    fn distribute(&mut self, options: &[Tree<'a>], other: &Tree<'a>, depth: usize) -> Expanded<'a> {
        let mut all = Vec::with_capacity(options.len());
        for option in options {
            let other = self.copy(other)?;
            let both = self.intersect(option, &other, depth)?;
            match both.form {
                Form::Any => return Ok(both),
                Form::Never => {}
                _ => all.push(both),
            }
        }
        self.make(Form::Either(all))
    }

    fn item(&mut self, first: &[Tree<'a>], rest: &Tree<'a>, at: usize) -> Expanded<'a> {
        first.get(at).map_or_else(|| self.copy(rest), |item| Ok(Rc::clone(item)))
    }

    fn intersect_objects(&mut self, a: &Object<'a>, b: &Object<'a>, depth: usize) -> Expanded<'a> {
        let mut named = BTreeMap::new();
        for (name, property) in &a.named {
            let other = self.copy(b.property(name))?;
            named.insert(*name, self.intersect(property, &other, depth)?);
        }
        for (name, property) in b.named.iter().filter(|(name, _)| !a.named.contains_key(*name)) {
            let other = self.copy(a.property(name))?;
            named.insert(*name, self.intersect(property, &other, depth)?);
        }
        let mut patterns = BTreeMap::new();
        for (pattern, property) in &a.patterns {
            let other = self.copy(b.patterns.get(pattern).unwrap_or(&b.rest))?;
            patterns.insert(*pattern, self.intersect(property, &other, depth)?);
        }
        for (pattern, property) in b.patterns.iter().filter(|(pattern, _)| !a.patterns.contains_key(*pattern))
        {
            let other = self.copy(&a.rest)?;
            patterns.insert(*pattern, self.intersect(property, &other, depth)?);
        }
        let rest = self.intersect(&a.rest, &b.rest, depth)?;
        let required_bytes = a.required_bytes + b.required_bytes;
        self.make(Form::Object(Object { named, patterns, rest, required_bytes }))
    }

    fn plain(&mut self, name: &'a str, text_bytes: usize) -> Expanded<'a> {
        self.pay(NODE_BYTES)?;
        Ok(Rc::new(Node { form: Form::Plain(name), bytes: NODE_BYTES + text_bytes }))
    }

    /// A schema of others that are made already.
    fn make(&mut self, form: Form<'a>) -> Expanded<'a> {
        let sum = |trees: &[Tree<'_>]| trees.iter().map(|tree| tree.bytes).sum::<usize>();
        let (own, held) = match &form {
            Form::Any | Form::Never | Form::Plain(_) => (NODE_BYTES, 0),
            Form::Ref(name) => (NODE_BYTES + name.len(), 0),
            Form::Array { first, rest } => (NODE_BYTES, sum(first) + rest.bytes),
            Form::Either(options) => (NODE_BYTES, sum(options)),
            Form::Object(object) => {
                self.compare_patterns(object)?;
                object.bytes()
            }
        };
        // What it holds is paid for, or as long as the text that says it.
        self.pay(NODE_BYTES)?;
        Ok(Rc::new(Node { form, bytes: own.saturating_add(held) }))
    }

    /// Each with each, all of their letters at hand.
    fn compare_patterns(&mut self, object: &Object<'_>) -> Result<(), String> {
        let letters: usize = object.patterns.keys().map(|pattern| pattern.len()).sum();
        let pairs = object.patterns.len().saturating_sub(1).saturating_mul(object.patterns.len());
        self.pay(pairs.saturating_mul(letters + PAIR_COST))
    }

    fn copy(&mut self, tree: &Tree<'a>) -> Expanded<'a> {
        self.pay(tree.bytes)?;
        Ok(Rc::clone(tree))
    }

    fn pay(&mut self, cost: usize) -> Result<(), String> {
        self.left = self.left.checked_sub(cost).ok_or(
            "the schema is too large with its alternatives multiplied out; make its lists or patterns fewer",
        )?;
        Ok(())
    }
}

impl<'a> Object<'a> {
    /// What a property of this name has to be. Which pattern it matches isn't looked at.
    fn property(&self, name: &str) -> &Tree<'a> {
        let unnamed = || self.patterns.values().chain([&self.rest]).max_by_key(|tree| tree.bytes);
        self.named.get(name).or_else(unnamed).unwrap_or(&self.rest)
    }

    /// Of itself, and of what it holds.
    fn bytes(&self) -> (usize, usize) {
        let all = || self.named.iter().chain(&self.patterns);
        let names: usize = all().map(|(name, _)| TEXT_BYTES + name.len()).sum();
        let held: usize = all().map(|(_, tree)| tree.bytes).sum();
        (NODE_BYTES + names + self.required_bytes, held.saturating_add(self.rest.bytes))
    }
}

fn any<'a>() -> Tree<'a> {
    Rc::new(Node { form: Form::Any, bytes: NODE_BYTES })
}

fn never<'a>() -> Tree<'a> {
    Rc::new(Node { form: Form::Never, bytes: NODE_BYTES })
}

fn same_type(one: &str, other: &str) -> bool {
    let plain = |name| if name == "integer" { "number" } else { name };
    plain(one) == plain(other)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// With the room that compilers have.
    fn checked(schemas: &[Value]) -> Result<(), String> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(super::super::compiler::STACK_BYTES);
            thread.spawn_scoped(scope, || check(schemas)).unwrap().join().unwrap()
        })
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("n{n}")).collect()
    }

    fn properties(count: usize, schema: &Value) -> Value {
        names(count).into_iter().map(|name| (name, schema.clone())).collect::<Map<_, _>>().into()
    }

    #[test]
    fn what_multiplies_is_refused_before_it_does() {
        let heavy = json!({"type": "object", "required": names(10_000)});
        let patterns = |count: usize| (0..count).map(|n| (format!("^{n}-$"), Value::Bool(true)));
        let texts = vec!["x".repeat(100); 1_000];
        for (name, schema) in [
            ("names by alternatives", json!({"required": names(20_000), "anyOf": vec![true; 10_000]})),
            (
                "alternatives before names",
                json!({"oneOf": vec![json!({"type": "object"}); 5_000], "required": names(10_000)}),
            ),
            ("names by types", json!({"type": vec!["object"; 20_000], "required": names(10_000)})),
            (
                "alternatives by alternatives",
                json!({"enum": texts, "anyOf": vec![json!({"type": "string"}); 1_000]}),
            ),
            (
                "properties by what the others are",
                json!({"allOf": [{"properties": properties(5_000, &json!(true))}, {"additionalProperties": heavy}]}),
            ),
            (
                "items by what the others are",
                json!({"allOf": [{"prefixItems": vec![true; 5_000]}, {"items": heavy}]}),
            ),
            ("values by items", json!({"items": heavy, "const": vec![0; 5_000], "type": "array"})),
            (
                "properties by patterns",
                json!({"properties": properties(5_000, &json!(true)), "patternProperties": {"^n": heavy}}),
            ),
            (
                "a target by those who name it",
                json!({"$defs": {"t": heavy}, "anyOf": vec![json!({"$ref": "#/$defs/t", "minProperties": 1}); 5_000]}),
            ),
            ("patterns by patterns", json!({"patternProperties": patterns(2_000).collect::<Map<_, _>>()})),
            (
                "patterns by alternatives",
                json!({"patternProperties": patterns(60).collect::<Map<_, _>>(),
                    "anyOf": vec![json!({"required": ["a"]}); 1_000]}),
            ),
            (
                "a chain of references",
                (0..8_000).fold(json!({"$ref": "#/$defs/n0", "$defs": {}}), |mut all, n| {
                    all["$defs"][format!("n{n}")] = json!({"$ref": format!("#/$defs/n{}", n + 1)});
                    all
                }),
            ),
        ] {
            assert!(checked(&[schema]).is_err(), "{name}");
        }
        // Each is none too much, all of them are.
        let half = json!({"required": names(1_000), "anyOf": vec![json!({"type": "object"}); 200]});
        assert_eq!(checked(std::slice::from_ref(&half)), Ok(()));
        assert!(checked(&vec![half; 4]).is_err());
    }

    #[test]
    fn what_people_write_is_taken() {
        let field =
            json!({"anyOf": [{"type": "string", "maxLength": 99}, {"type": "null"}], "default": null});
        let record = json!({"type": "object", "properties": properties(300, &field), "required": names(300),
            "additionalProperties": false});
        let node = json!({"type": "object", "properties": {"value": {"type": ["integer", "null"]},
            "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "required": ["value"]});
        for (name, schema) in [
            ("a record", record.clone()),
            ("one of many records", json!({"anyOf": vec![record.clone(); 20]})),
            (
                "records that inherit",
                json!({"$defs": {"base": record}, "allOf": [{"$ref": "#/$defs/base"},
                {"$ref": "#/$defs/base"}, {"properties": properties(50, &field)}]}),
            ),
            ("a tree", json!({"$defs": {"node": node}, "$ref": "#/$defs/node"})),
            (
                "a tree with more",
                json!({"$defs": {"node": node}, "allOf": [{"$ref": "#/$defs/node"}],
                "properties": {"name": {"type": "string"}}}),
            ),
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
            ("nothing that holds", json!({"anyOf": 5, "allOf": {}, "type": 7, "$ref": [], "required": {}})),
        ] {
            assert_eq!(checked(&[schema]), Ok(()), "{name}");
        }
    }
}
