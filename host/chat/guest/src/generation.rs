//! The tags `{% generation %}` and `{% endgeneration %}`: an extension of Jinja by which transformers finds the replies
//! that a model is trained on. They write nothing, and what they enclose has a scope of its own, just as in `with`.

const TAGS: [(&str, &str); 2] = [("generation", "with"), ("endgeneration", "endwith")];

/// The template with Jinja's own tags in place of these. Texts, comments and raw blocks keep what they say.
pub(crate) fn as_jinja(template: String) -> String {
    if !template.contains(TAGS[1].0) {
        return template;
    }
    let mut text = String::with_capacity(template.len());
    let mut rest = template.as_str();
    while let Some(at) = opening(rest) {
        let (before, code) = rest.split_at(at + 2);
        text.push_str(before);
        let tag = if before.ends_with('%') { tag_of(code) } else { None };
        if let Some((at, name, plain)) = tag {
            text.push_str(&code[..at]);
            text.push_str(plain);
            rest = &code[at + name.len()..];
            continue;
        }
        let end = match before.as_bytes().last() {
            Some(b'#') => code.find("#}"),
            Some(b'{') => end_of_code(code, "}}"),
            _ if bare(code, "raw").is_some() => end_of_raw(code),
            _ => end_of_code(code, "%}"),
        };
        // What never ends is refused when the template is compiled.
        let (inside, after) = code.split_at(end.unwrap_or(code.len()));
        text.push_str(inside);
        rest = after;
    }
    text + rest
}

/// Where the next expression, tag or comment opens.
fn opening(text: &str) -> Option<usize> {
    let opens = |at: &usize| matches!(text.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#'));
    text.match_indices('{').map(|(at, _)| at).find(opens)
}

/// Where one of the tags has its name, that name, and the one to put there.
fn tag_of(code: &str) -> Option<(usize, &'static str, &'static str)> {
    TAGS.iter().find_map(|&(name, plain)| Some((bare(code, name)?, name, plain)))
}

/// Where a tag has its name, if it is this one and nothing else.
fn bare(code: &str, name: &str) -> Option<usize> {
    let start = code.strip_prefix(['-', '+']).unwrap_or(code).trim_start();
    let after = start.strip_prefix(name)?.trim_start();
    let ends = after.strip_prefix(['-', '+']).unwrap_or(after).starts_with("%}");
    ends.then_some(code.len() - start.len())
}

/// Where a raw block ends.
fn end_of_raw(code: &str) -> Option<usize> {
    code.match_indices("{%").map(|(at, _)| at).find(|at| bare(&code[at + 2..], "endraw").is_some())
}

/// Where an expression or a tag ends: in no text, and in no bracket.
fn end_of_code(code: &str, end: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0_usize, None);
    let mut letters = code.char_indices();
    while let Some((at, letter)) = letters.next() {
        match (quote, letter) {
            (Some(_), '\\') => {
                letters.next();
            }
            (Some(open), _) if letter == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(letter),
            (None, _) if depth == 0 && code[at..].starts_with(end) => return Some(at),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_replaced_and_nothing_else_is() {
        for (template, plain) in [
            ("a{% generation %}b{% endgeneration %}c", "a{% with %}b{% endwith %}c"),
            ("{%- generation -%} {%+endgeneration+%}", "{%- with -%} {%+endwith+%}"),
            ("{%generation%}{%\n\tendgeneration\n%}", "{%with%}{%\n\tendwith\n%}"),
            ("{{ '}}' ~ {'a': {}}.a }}{% endgeneration %}", "{{ '}}' ~ {'a': {}}.a }}{% endwith %}"),
            ("{% if '\\'%}' %}{% endgeneration %}{% endif %}", "{% if '\\'%}' %}{% endwith %}{% endif %}"),
            ("{# it's #}{% endgeneration %}", "{# it's #}{% endwith %}"),
            ("{% raw %}'{% endraw %}{% endgeneration %}", "{% raw %}'{% endraw %}{% endwith %}"),
            ("{ {% endgeneration %}", "{ {% endwith %}"),
            ("{{ x }}{{ '{{' }}{% endgeneration %}", "{{ x }}{{ '{{' }}{% endwith %}"),
        ] {
            assert_eq!(as_jinja(template.to_owned()), plain, "{template}");
        }
        for template in [
            "generation endgeneration",
            "{{ '{% endgeneration %}' }}",
            "{{ \"\\\"{% endgeneration %}\" }}",
            "{% set x = '{% endgeneration %}' %}",
            "{{ {'a': {'b': 1}} ~ '{% endgeneration %}' }}",
            "{# {% generation %}{% endgeneration %} #}",
            "{% raw %}{% generation %}{% endgeneration %}{% endraw %}",
            "{%- raw -%}{% raw %}{% endgeneration %}{%- endraw -%}",
            "{% endgenerations %}{% endgeneration x %}{% set endgeneration = 1 %}{{ endgeneration }}",
            // These never end.
            "{# {% endgeneration %}",
            "{{ '{% endgeneration %}",
            "{% raw %}{% endgeneration %}",
        ] {
            assert_eq!(as_jinja(template.to_owned()), template);
        }
    }
}
