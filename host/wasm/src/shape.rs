//! What compiling a component may cost, estimated from its bytes beforehand.
//!
//! wasmtime has no limit for that: it copies a nested component each time that it is instantiated, so a
//! kilobyte of them can ask for gigabytes, and its compiler keeps each local of a function at each of its
//! branches. So the outline must be flat, as `wit-component` makes it, and code is counted in units that the
//! compiler's time and memory follow: of the shapes that were tried none took over 5 us and 150 bytes a unit.
//! Deliberately absent: whether the bytes are valid; wasmtime checks that.

use wasmtime::wasmparser::{
    BinaryReaderError, ComponentInstance, FunctionBody, Instance, Operator, Parser, Payload,
    TypeSectionReader,
};

use crate::error::LoadError;
use crate::text::clip;

/// Instantiations in a component; the shipped policies have five.
const MAX_INSTANCES: u64 = 16;
/// Core modules in a component; the shipped policies have three, two of them shims.
const MAX_MODULES: u64 = 16;
/// Bytes that are neither code nor data nor names: types, imports, exports. The shipped policies have 7 KB.
const MAX_OUTLINE_BYTES: u64 = 256 << 10;
/// Parameters of a function; the shipped policies have up to 11.
const MAX_PARAMETERS: u64 = 32;
/// Results of a function. Languages return one; a call, of two bytes, makes as many values as there are
/// results.
const MAX_RESULTS: u64 = 4;
/// The largest function of the shipped policies has a twelfth of this.
const MAX_FUNCTION_UNITS: u64 = 1_000_000;
/// The largest of the shipped policies has a seventh of this.
const MAX_CODE_UNITS: u64 = 4_000_000;
/// What a function costs that does nothing.
const UNITS_PER_FUNCTION: u64 = 64;
/// The cost of a call, of a function or of the host's own.
const UNITS_PER_CALL: u64 = 32;

/// What was seen so far of a component's outline: its parts, but for its code.
#[derive(Default)]
pub(crate) struct Outline {
    instances: u64,
    modules: u64,
    /// Bytes of code, data and names.
    beside: u64,
}

impl Outline {
    /// The next piece of the file. `nested` is whether it belongs to something inside of the component.
    pub(crate) fn see(&mut self, payload: &Payload<'_>, nested: bool) -> Result<(), LoadError> {
        match payload {
            Payload::ModuleSection { .. }
            | Payload::InstanceSection(_)
            | Payload::ComponentInstanceSection(_)
            | Payload::ComponentSection { .. }
            | Payload::ComponentCanonicalSection(_)
            | Payload::ComponentStartSection { .. }
                if nested =>
            {
                Err(LoadError::Nested)
            }
            Payload::ModuleSection { .. } => {
                self.modules += 1;
                at_most("core modules", self.modules, MAX_MODULES)
            }
            Payload::InstanceSection(section) => section.clone().into_iter().try_for_each(|instance| {
                self.instance(matches!(instance.map_err(malformed)?, Instance::Instantiate { .. }))
            }),
            Payload::ComponentInstanceSection(section) => {
                section.clone().into_iter().try_for_each(|instance| {
                    let instance = instance.map_err(malformed)?;
                    self.instance(matches!(instance, ComponentInstance::Instantiate { .. }))
                })
            }
            Payload::CodeSectionStart { size, .. } => self.is_beside(*size as usize),
            Payload::DataSection(section) => self.is_beside(section.range().len()),
            Payload::CustomSection(section) => self.is_beside(section.range().len()),
            _ => Ok(()),
        }
    }

    /// All of the file was seen.
    pub(crate) fn end(&self, component_bytes: usize) -> Result<(), LoadError> {
        let outline = (component_bytes as u64).saturating_sub(self.beside);
        at_most("bytes of types, imports and exports", outline, MAX_OUTLINE_BYTES)
    }

    fn instance(&mut self, made: bool) -> Result<(), LoadError> {
        self.instances += u64::from(made);
        at_most("instantiations", self.instances, MAX_INSTANCES)
    }

    fn is_beside(&mut self, bytes: usize) -> Result<(), LoadError> {
        self.beside += bytes as u64;
        Ok(())
    }
}

/// Whether a component has little enough code. Reading it takes a millisecond, so this is only for components
/// that are about to be compiled.
pub(crate) fn check_code(component: &[u8]) -> Result<(), LoadError> {
    let mut all = 0;
    for payload in Parser::new(0).parse_all(component) {
        match payload.map_err(malformed)? {
            Payload::TypeSection(section) => check_signatures(&section)?,
            Payload::CodeSectionEntry(body) => {
                let units = units(&body).map_err(malformed)?;
                at_most("units of code in one function", units, MAX_FUNCTION_UNITS)?;
                all += units;
                at_most("units of code", all, MAX_CODE_UNITS)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_signatures(section: &TypeSectionReader<'_>) -> Result<(), LoadError> {
    for function in section.clone().into_iter_err_on_gc_types() {
        let function = function.map_err(malformed)?;
        at_most("parameters of a function", function.params().len() as u64, MAX_PARAMETERS)?;
        at_most("results of a function", function.results().len() as u64, MAX_RESULTS)?;
    }
    Ok(())
}

/// A byte is one unit, and so is a variable at a branch. Parameters, and the values that a block may take,
/// count as if there were as many as allowed.
fn units(body: &FunctionBody<'_>) -> Result<u64, BinaryReaderError> {
    let mut variables = MAX_PARAMETERS;
    for local in body.get_locals_reader()? {
        variables += u64::from(local?.0);
    }
    let (mut branches, mut calls) = (1, 0);
    for operator in body.get_operators_reader()? {
        match operator? {
            Operator::Block { .. }
            | Operator::Loop { .. }
            | Operator::If { .. }
            | Operator::Else
            | Operator::BrIf { .. } => branches += 1,
            Operator::BrTable { targets } => branches += u64::from(targets.len()),
            Operator::Call { .. }
            | Operator::CallIndirect { .. }
            | Operator::ReturnCall { .. }
            | Operator::ReturnCallIndirect { .. }
            | Operator::RefFunc { .. }
            | Operator::ElemDrop { .. }
            | Operator::DataDrop { .. }
            | Operator::MemoryInit { .. }
            | Operator::MemoryCopy { .. }
            | Operator::MemoryFill { .. }
            | Operator::MemoryGrow { .. }
            | Operator::TableInit { .. }
            | Operator::TableCopy { .. }
            | Operator::TableFill { .. }
            | Operator::TableGrow { .. }
            | Operator::TableGet { .. }
            | Operator::TableSet { .. } => calls += 1,
            _ => {}
        }
    }
    Ok(UNITS_PER_FUNCTION + body.range().len() as u64 + variables * branches + UNITS_PER_CALL * calls)
}

fn at_most(what: &'static str, found: u64, max: u64) -> Result<(), LoadError> {
    if found > max { Err(LoadError::TooComplex { what, found, max }) } else { Ok(()) }
}

pub(crate) fn malformed(error: BinaryReaderError) -> LoadError {
    LoadError::Malformed(clip(&error.to_string(), 256))
}
