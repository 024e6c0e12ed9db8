//! Whether an automaton can keep to a pattern of a JSON schema: ECMA-262's regular expressions look around, refer back
//! and assert boundaries, which llguidance's don't.

use llguidance::regex_to_lark;
use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{AssertionKind, Ast, Flag, Flags};

/// Whether the compiler can read a pattern, and all that it asserts is where a text begins or ends. Takes time in
/// proportion to its length: character classes are not expanded.
pub fn is_enforceable(pattern: &str) -> bool {
    // What the compiler makes of it first.
    let read = Parser::new().parse(&regex_to_lark(pattern, "dw"));
    read.is_ok_and(|ast| is_anchored_at_most(&ast, true, true))
}

/// Whether there are no assertions but `^` and `$` where the pattern `begins` and `ends`.
fn is_anchored_at_most(ast: &Ast, begins: bool, ends: bool) -> bool {
    match ast {
        Ast::Assertion(_) => (begins && is_begin(ast)) || (ends && is_end(ast)),
        Ast::Flags(set) => !is_by_line(&set.flags),
        Ast::Group(group) if group.flags().is_some_and(is_by_line) => false,
        Ast::Group(group) => is_anchored_at_most(&group.ast, begins, ends),
        Ast::Repetition(repeated) => is_anchored_at_most(&repeated.ast, false, false),
        Ast::Alternation(either) => either.asts.iter().all(|ast| is_anchored_at_most(ast, begins, ends)),
        Ast::Concat(all) => {
            let first = all.asts.iter().position(|ast| !is_begin(ast));
            let last = all.asts.iter().rposition(|ast| !is_end(ast));
            all.asts.iter().enumerate().all(|(at, ast)| {
                let begins = begins && first.is_none_or(|first| at <= first);
                let ends = ends && last.is_none_or(|last| at >= last);
                is_anchored_at_most(ast, begins, ends)
            })
        }
        _ => true,
    }
}

/// Whether it matches the begin of a text. Flags match anywhere.
fn is_begin(ast: &Ast) -> bool {
    match ast {
        Ast::Assertion(of) => matches!(of.kind, AssertionKind::StartLine | AssertionKind::StartText),
        ast => matches!(ast, Ast::Flags(_)),
    }
}

/// Whether it matches the end of a text. Flags match anywhere.
fn is_end(ast: &Ast) -> bool {
    match ast {
        Ast::Assertion(of) => matches!(of.kind, AssertionKind::EndLine | AssertionKind::EndText),
        ast => matches!(ast, Ast::Flags(_)),
    }
}

/// Whether `^` and `$` match at each line.
fn is_by_line(flags: &Flags) -> bool {
    flags.flag_state(Flag::MultiLine) == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_judged_as_the_compiler_judges_them() {
        for (pattern, expected) in [
            ("", true),
            ("^[A-Z]{2}-\\d+/[\\w.]*$", true),
            ("a^?|b", false),
            ("^a|b$", true),
            ("(?:^|,)x(,|$)", true),
            ("(?i)^a$", true),
            ("(?m)^a$", false),
            ("^(?<year>[0-9]{4})$", true),
            // What only looks like more.
            ("^f\\(?=x$", true),
            ("[(?!]", true),
            ("[$^]", true),
            ("\\^a\\$b", true),
            ("^(?!x)y$", false),
            ("(?=x)y", false),
            ("(?<=x)y", false),
            ("(?<!x)y", false),
            ("\\bword\\b", false),
            ("a\\Bb", false),
            ("(a)\\1", false),
            ("a^b", false),
            ("a$b", false),
            ("(^a)*", false),
            ("a(", false),
        ] {
            assert_eq!(is_enforceable(pattern), expected, "{pattern}");
            let mut compiler = llguidance::derivre::RegexBuilder::new();
            let compiled = compiler.mk_regex_for_serach(&regex_to_lark(pattern, "dw"));
            assert_eq!(compiled.is_ok(), expected, "{pattern}");
        }
    }
}
