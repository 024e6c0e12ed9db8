//! How a checkpoint makes one vector of a text: sentence-transformers' `modules.json` and the file of its pooling module, which
//! has a list of modes (`pooling_mode`) or, before its version 6, a flag for each. What this host lacks is no error here,
//! because such a checkpoint may still generate text; whoever asks for a vector is told.

use serde_json::Value;

use crate::error::ModelError;
use crate::source::Source;

const MODULES: &str = "modules.json";
/// What the names of the older flags begin with.
const FLAG: &str = "pooling_mode_";

/// How a checkpoint makes one vector of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The last token's hidden state, after the last norm.
    Last {
        /// Scaled to a length of 1.
        normalized: bool,
    },
    /// In a way that this host lacks: which one, and where the checkpoint says so.
    Unsupported(String),
}

impl Pooling {
    /// Reads a directory's files; `None` without `modules.json`.
    pub(crate) fn load(source: &Source<'_>) -> Result<Option<Self>, ModelError> {
        let Some(bytes) = source.read(MODULES)? else { return Ok(None) };
        match serde_json::from_slice::<Vec<Value>>(&bytes) {
            Ok(modules) => of_modules(source, &modules).map(Some),
            Err(error) => Ok(Some(Self::Unsupported(format!("{MODULES} is not a list of modules: {error}")))),
        }
    }
}

fn of_modules(source: &Source<'_>, modules: &[Value]) -> Result<Pooling, ModelError> {
    let (mut modes, mut normalized) = (Vec::new(), false);
    for module in modules {
        let text = |key: &str| module[key].as_str().unwrap_or_default();
        // Versions have the same class in different modules of Python.
        match text("type").rsplit('.').next().unwrap_or_default() {
            "Transformer" => {}
            "Pooling" => modes.extend(modes_of(source, text("path"))?),
            "Normalize" => normalized = true,
            other => return Ok(Pooling::Unsupported(format!("{MODULES} has the module {other:?}"))),
        }
    }
    Ok(match &modes[..] {
        [mode] if mode == "lasttoken" => Pooling::Last { normalized },
        [] => Pooling::Unsupported(format!("neither {MODULES} nor its pooling's config.json names a mode")),
        _ => Pooling::Unsupported(format!("{MODULES} has a pooling of the mode {}", modes.join(" and "))),
    })
}

/// Modes of the pooling module in this folder; none if there is no such file, or none in it.
fn modes_of(source: &Source<'_>, folder: &str) -> Result<Vec<String>, ModelError> {
    if folder.is_empty() {
        return Ok(Vec::new());
    }
    let bytes = source.read(&format!("{folder}/config.json"))?;
    let Some(Ok(Value::Object(keys))) = bytes.map(|bytes| serde_json::from_slice(&bytes)) else {
        return Ok(Vec::new());
    };
    Ok(match keys.get("pooling_mode") {
        Some(Value::String(mode)) => vec![mode.clone()],
        Some(Value::Array(modes)) => modes.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => {
            let on = keys.iter().filter(|(_, value)| value.as_bool() == Some(true));
            on.filter_map(|(key, _)| key.strip_prefix(FLAG)).map(str::to_owned).collect()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(modules: &str, pooling: &str) -> Option<Pooling> {
        let files = [("modules.json", modules.as_bytes()), ("1_Pooling/config.json", pooling.as_bytes())];
        Pooling::load(&Source::Embedded(&files)).unwrap()
    }

    fn modules(of: &[(&str, &str)]) -> String {
        let module = |(class, path): &(&str, &str)| serde_json::json!({"type": class, "path": path});
        serde_json::to_string(&of.iter().map(module).collect::<Vec<_>>()).unwrap()
    }

    const OLD: [(&str, &str); 3] = [
        ("sentence_transformers.models.Transformer", ""),
        ("sentence_transformers.models.Pooling", "1_Pooling"),
        ("sentence_transformers.models.Normalize", "2_Normalize"),
    ];
    const NEW: [(&str, &str); 2] = [
        ("sentence_transformers.base.modules.transformer.Transformer", ""),
        ("sentence_transformers.sentence_transformer.modules.pooling.Pooling", "1_Pooling"),
    ];

    #[test]
    fn last_token_pooling_is_read_in_both_forms() {
        let flags = r#"{"word_embedding_dimension": 64, "pooling_mode_cls_token": false,
            "pooling_mode_mean_tokens": false, "pooling_mode_lasttoken": true, "include_prompt": true}"#;
        for pooling in
            [flags, r#"{"pooling_mode": "lasttoken", "embedding_dimension": 64, "include_prompt": true}"#]
        {
            for (of, normalized) in [(&OLD[..], true), (&NEW[..], false)] {
                assert_eq!(read(&modules(of), pooling), Some(Pooling::Last { normalized }), "{pooling}");
            }
        }
        assert_eq!(
            read(&modules(&OLD), r#"{"pooling_mode": ["lasttoken"]}"#),
            Some(Pooling::Last { normalized: true })
        );
    }

    #[test]
    fn what_this_host_lacks_is_named() {
        let dense = [NEW[0], NEW[1], ("sentence_transformers.models.Dense", "2_Dense")];
        let last = r#"{"pooling_mode": "lasttoken"}"#;
        for (modules, pooling, named) in [
            (modules(&OLD), r#"{"pooling_mode_mean_tokens": true}"#, "mode mean_tokens"),
            (modules(&OLD), r#"{"pooling_mode": "cls"}"#, "mode cls"),
            (modules(&OLD), r#"{"pooling_mode": ["mean", "lasttoken"]}"#, "mode mean and lasttoken"),
            (modules(&dense), last, "the module \"Dense\""),
            (modules(&NEW[..1]), last, "names a mode"),
            (modules(&OLD), "no JSON", "names a mode"),
            ("{}".to_owned(), last, "is not a list"),
        ] {
            match read(&modules, pooling) {
                Some(Pooling::Unsupported(why)) => assert!(why.contains(named), "{why}"),
                other => panic!("{modules} {pooling}: {other:?}"),
            }
        }
        assert_eq!(Pooling::load(&Source::Embedded(&[])).unwrap(), None);
    }

    #[test]
    fn a_path_out_of_the_checkpoint_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let outside = modules(&[(NEW[1].0, "../other")]);
        std::fs::write(directory.path().join(MODULES), outside).unwrap();
        let error = Pooling::load(&Source::Directory(directory.path().to_owned())).unwrap_err();
        assert!(error.message.contains("must stay inside"), "{error}");
    }
}
