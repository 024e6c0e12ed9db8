//! Graphs: what was captured, and its executable form.

use std::ffi::c_ulonglong;

use cudarc::driver::sys::{CUgraph, CUgraphExec, CUresult, CUstream};

use super::put;
use crate::object::Object;
use crate::refusal::Refusal;
use crate::state::{Needs, call};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(
    executable: *mut CUgraphExec,
    graph: CUgraph,
    flags: c_ulonglong,
) -> CUresult {
    call("cuGraphInstantiateWithFlags", Needs::ContextOrCapture, |state| {
        if flags != 0 {
            return Err(Refusal::value("flags aren't emulated"));
        }
        let captured = state.objects.get(graph as usize, "graph", |object| match object {
            Object::Graph(captured) => Some(captured),
            _ => None,
        })?;
        let twice = || Refusal::new(CUresult::CUDA_ERROR_NOT_SUPPORTED, "a graph is instantiated once here");
        let captured = captured.take().ok_or_else(twice)?;
        // SAFETY: the caller's promise.
        unsafe { put(executable, state.objects.add(Object::Executable(captured)) as CUgraphExec) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphDestroy(graph: CUgraph) -> CUresult {
    call("cuGraphDestroy", Needs::ContextOrCapture, |state| {
        state.objects.remove(graph as usize, "graph", |object| matches!(object, Object::Graph(_)))?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream) -> CUresult {
    call("cuGraphLaunch", Needs::Context, |state| {
        state.stream(stream as usize)?;
        let graph = state.objects.get(executable as usize, "executable graph", |object| match object {
            Object::Executable(graph) => Some(graph),
            _ => None,
        })?;
        // SAFETY: that the memory it uses is allocated is the caller's promise.
        unsafe { graph.launch() }?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphExecDestroy(executable: CUgraphExec) -> CUresult {
    call("cuGraphExecDestroy", Needs::ContextOrCapture, |state| {
        let wanted = |object: &Object| matches!(object, Object::Executable(_));
        state.objects.remove(executable as usize, "executable graph", wanted)?;
        Ok(())
    })
}
