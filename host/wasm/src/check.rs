//! What can be checked about a component before compiling any of it: its size and outline, that it is a
//! component, what it imports and which world it exports. Types are not checked here; linking does that.

use infer_core::policy::PolicyKind;
use sha2::{Digest, Sha256};
use wasmtime::wasmparser::{Encoding, Parser, Payload};

use crate::error::LoadError;
use crate::shape::{self, malformed};

/// The policy interface: all that a component may import and export belongs to this package.
pub const INTERFACE: &str = "infer:policy@0.1.0";
/// The only import with functions.
const HOST: &str = "infer:policy/host@0.1.0";
/// An import that has only types: every exported interface uses it, so every component names it.
const TYPES: &str = "infer:policy/types@0.1.0";
const LIFECYCLE: &str = "infer:policy/lifecycle@0.1.0";

/// Returns the slot that a component is for, or why it is for none.
pub(crate) fn inspect(component: &[u8], max_bytes: usize) -> Result<PolicyKind, LoadError> {
    if component.len() > max_bytes {
        return Err(LoadError::TooLarge { bytes: component.len(), max: max_bytes });
    }
    let outline = Outline::parse(component)?;
    if let Some(name) = outline.imports.iter().find(|&&name| name != HOST && name != TYPES) {
        return Err(LoadError::Import { name: shorten(name) });
    }
    outline.kind()
}

/// SHA-256 in hex.
pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The names at a component's outermost level.
#[derive(Default)]
struct Outline<'a> {
    imports: Vec<&'a str>,
    exports: Vec<&'a str>,
}

impl<'a> Outline<'a> {
    fn parse(component: &'a [u8]) -> Result<Self, LoadError> {
        if !component.starts_with(b"\0asm") {
            return Err(LoadError::NotWasm);
        }
        let mut outline = Self::default();
        let mut shape = shape::Outline::default();
        let mut depth = 0_usize;
        for payload in Parser::new(0).parse_all(component) {
            let payload = payload.map_err(malformed)?;
            shape.see(&payload, depth > 0)?;
            match payload {
                Payload::Version { encoding: Encoding::Module, .. } if depth == 0 => {
                    return Err(LoadError::CoreModule);
                }
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
                Payload::End(_) => depth = depth.saturating_sub(1),
                Payload::ComponentImportSection(section) if depth == 0 => {
                    for import in section {
                        outline.imports.push(import.map_err(malformed)?.name.name);
                    }
                }
                Payload::ComponentExportSection(section) if depth == 0 => {
                    for export in section {
                        outline.exports.push(export.map_err(malformed)?.name.name);
                    }
                }
                _ => {}
            }
        }
        shape.end(component.len())?;
        Ok(outline)
    }

    fn kind(&self) -> Result<PolicyKind, LoadError> {
        let exports = |name: &str| self.exports.contains(&name);
        let kinds: Vec<_> = PolicyKind::ALL
            .into_iter()
            .filter(|kind| exports(&format!("infer:policy/{kind}@0.1.0")))
            .collect();
        let found = match (exports(LIFECYCLE), kinds.as_slice()) {
            (true, &[kind]) => return Ok(kind),
            (_, &[_, _, ..]) => "it exports several; make one component per slot".to_owned(),
            (false, &[kind]) => format!("it exports the {kind} interface but no lifecycle"),
            _ if self.exports.is_empty() => "it exports nothing".to_owned(),
            _ => format!("it exports {}", shorten(&self.exports.join(", "))),
        };
        Err(LoadError::Exports { found })
    }
}

/// Names come from an untrusted file and end up in responses and logs.
fn shorten(name: &str) -> String {
    crate::text::clip(name, 256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_is_the_package_of_the_wit_files() {
        let package = format!("package {INTERFACE};");
        assert!(include_str!("../../../wit/types.wit").contains(&package), "{package}");
        let (name, version) = INTERFACE.split_once('@').expect("a version");
        for of_it in [HOST, TYPES, LIFECYCLE] {
            assert!(
                of_it.starts_with(&format!("{name}/")) && of_it.ends_with(&format!("@{version}")),
                "{of_it}"
            );
        }
    }
}
