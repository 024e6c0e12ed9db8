//! What the engine expects of outputs, noted by an admission policy, which is shown it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::builtin::AcceptWhatFits;
use crate::engine::Policies;
use crate::policy::{
    AdmissionPolicy, AdmissionRequest, Load, Policy, PolicyFault, PolicyInfo, Pressure, Verdict,
};

/// What was expected of each request when it arrived, by its id.
#[derive(Clone, Debug, Default)]
pub struct Expectations(Arc<Mutex<BTreeMap<u64, u32>>>);

impl Expectations {
    /// The built-ins, none of which goes by expected lengths. Admission notes them here.
    pub fn policies(&self) -> Policies {
        let admission = Watching { inner: AcceptWhatFits::default(), expectations: self.clone() };
        Policies { admission: Box::new(admission), ..Policies::builtin() }
    }

    /// In the order in which the requests arrived.
    pub fn noted(&self) -> Vec<u32> {
        self.0.lock().expect("no panic").values().copied().collect()
    }
}

struct Watching {
    inner: AcceptWhatFits,
    expectations: Expectations,
}

impl Policy for Watching {
    fn info(&self) -> Arc<PolicyInfo> {
        self.inner.info()
    }
}

impl AdmissionPolicy for Watching {
    fn admit(&mut self, request: &AdmissionRequest, load: &Load) -> Result<Verdict, PolicyFault> {
        let mut noted = self.expectations.0.lock().expect("no panic");
        noted.entry(request.id.0).or_insert(request.expected_tokens);
        self.inner.admit(request, load)
    }

    fn measure(&mut self, load: &Load) -> Result<Pressure, PolicyFault> {
        self.inner.measure(load)
    }
}
