//! `infer config`: what a host would do with these flags, this environment and this file, without one.

use clap::{Args, Subcommand};

use super::Failure;
use super::flags::Flags;
use crate::config::{ConfigError, Origin, SETTINGS, Setting, Settings};
use crate::http::Tls;
use crate::load::StartError;
use crate::policies;
use crate::reload::Reload;
use crate::serve::initial_policies;
use crate::tenants::Tenants;

/// Commands about settings.
#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Checks the settings and the files that they name; takes the flags of `infer serve`
    Check(ConfigArgs),
    /// Prints all settings as an infer.toml, each with its origin; takes the flags of `infer serve`
    Print(ConfigArgs),
}

/// The flags of `infer serve`.
#[derive(Args)]
pub struct ConfigArgs {
    #[command(flatten)]
    flags: Flags<true>,
}

/// Runs a command.
pub fn run(command: ConfigCommand) -> Result<(), Failure> {
    match command {
        ConfigCommand::Check(args) => check(&args),
        ConfigCommand::Print(args) => {
            print!("{}", listing(&args.flags.settings()?));
            Ok(())
        }
    }
}

fn check(args: &ConfigArgs) -> Result<(), Failure> {
    crate::log::start("warn")?;
    let config = args.flags.config()?;
    let wrong = |flag: &str, wrong: String| ConfigError(format!("--{flag}: {wrong}"));
    let tenants = Tenants::open(config.api_keys.as_deref()).map_err(|e| wrong("api-keys", e))?;
    if let Some((cert, key)) = &config.tls {
        Tls::open(cert, key).map_err(|e| wrong("tls-cert", e))?;
    }
    let choices = Reload::new(&config, &tenants).choices();
    initial_policies(&policies::loader().map_err(StartError::from)?, &choices)?;
    let keys = if tenants.need_keys() { tenants.key_count().to_string() } else { "no".to_owned() };
    println!("the settings are valid ({keys} API keys; the model is checked when a host starts)");
    Ok(())
}

/// Every setting as a line of TOML; what has its default stands in a comment.
fn listing(settings: &Settings) -> String {
    let mut out = String::new();
    for setting in SETTINGS {
        let line = match settings.get(setting.key) {
            None => format!("# {} = {}", setting.key, setting.default),
            Some((origin, text)) => {
                let from = match origin {
                    Origin::File(path, line, _) => format!("{}:{line}", path.display()),
                    other => other.to_string(),
                };
                format!("{} = {}  # {from}", setting.key, literal(setting, text))
            }
        };
        out.push_str(&format!("# {}\n{line}\n", setting.help));
    }
    out
}

fn literal(setting: &Setting, text: &str) -> String {
    match text {
        "on" | "true" if setting.switch => "true".to_owned(),
        "off" | "false" if setting.switch => "false".to_owned(),
        // `0080` and `+80` are numbers for a flag, and none in TOML.
        _ if text.parse::<i64>().is_ok_and(|number| number.to_string() == text) => text.to_owned(),
        _ => toml::Value::String(text.to_owned()).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Environment;

    #[test]
    fn what_is_printed_can_be_read_and_says_the_same() {
        let flags = [
            ("port", "9".to_owned()),
            ("kv-memory", "2GiB".to_owned()),
            ("prefix-caching", "off".to_owned()),
            ("seed", "0080".to_owned()),
            ("max-waiting-requests", "+5".to_owned()),
            ("model", "true".to_owned()),
            ("kv-events-topic", "18446744073709551615".to_owned()),
        ];
        let nowhere = tempfile::NamedTempFile::new().unwrap();
        let before = Settings::gather(&flags.into(), &Environment::default(), Some(nowhere.path())).unwrap();
        let text = listing(&before);
        assert!(text.contains("port = 9  # --port\n") && text.contains("\n# block-size = 16\n"), "{text}");
        std::fs::write(nowhere.path(), &text).unwrap();
        let after =
            Settings::gather(&Default::default(), &Environment::default(), Some(nowhere.path())).unwrap();
        for setting in SETTINGS {
            assert_eq!(
                after.get(setting.key).map(|v| v.1),
                before.get(setting.key).map(|v| v.1),
                "{}",
                setting.key
            );
        }
    }
}
