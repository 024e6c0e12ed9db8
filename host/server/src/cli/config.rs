//! `infer config`: checks and prints the settings that `infer serve` would use, without starting a host.

use clap::{Args, Subcommand};

use super::Failure;
use super::flags::Flags;
use super::serve::warn_of_variables;
use crate::admin::operators::Operators;
use crate::admin::token::{Token, VARIABLE};
use crate::config::{Config, ConfigError, Origin, SETTINGS, Setting, Settings};
use crate::data::{GivenTemplate, PendingTemplate};
use crate::http::Tls;
use crate::policies;
use crate::reload::Reload;
use crate::serve::{StartError, initial_policies};
use crate::startup::listen::check_addresses;
use crate::startup::load;
use crate::tenants::Tenants;

/// Commands about settings.
#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Checks the settings and what they name: files, policies, addresses, device, adapters, and the model with
    /// its tokenizer and chat template, but not the weights, nor what is on the hub; an address in use is valid, for
    /// the host that uses it may be the one with these settings; takes the flags of `infer serve`
    Check(ConfigArgs),
    /// Prints all settings as an infer.toml, with the origin of each and with defaults as comments; takes the
    /// flags of `infer serve`
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
    let (config, settings) = args.flags.config_and_settings()?;
    warn_of_variables(&config);
    let keys = checked(&config).map_err(|failure| failure.located(&settings))?;
    println!("the settings are valid ({keys}; the weights of the model were not read)");
    Ok(())
}

/// Checks what the settings name; says how many API keys there are.
fn checked(config: &Config) -> Result<String, Failure> {
    let wrong = |flag: &str, wrong: String| ConfigError(format!("--{flag}: {wrong}"));
    let tenants = Tenants::open(config)?;
    // Without a given token a host makes one, which is in no file.
    let own = match &config.admin_token {
        Some(text) => Token::given(text).map_err(|e| ConfigError(format!("{VARIABLE}: {e}")))?,
        None => Token::fresh().map_err(Failure::failed)?,
    };
    Operators::open(config, own)?;
    if let Some((cert, key)) = &config.tls {
        Tls::open(cert, key).map_err(|e| wrong("tls-cert", e))?;
    }
    let template = GivenTemplate::open(config)?;
    let choices = Reload::new(config, &tenants).choices();
    initial_policies(&policies::loader_with(&config.policy_limits).map_err(StartError::from)?, &choices)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::failed)?;
    runtime.block_on(check_addresses(config))?;
    let checkpoint = load::check(config)?;
    let own = checkpoint.as_ref().map_or(std::slice::from_ref(&config.model), |found| found.names.as_slice());
    tenants.warn_of_unserved(&load::all_names(config, own));
    if let Some(checkpoint) = checkpoint {
        let pending = PendingTemplate::begin(&checkpoint.source, template).map_err(Failure::failed)?;
        // What is wrong with it is in the log already, and a host serves everything else.
        let _ = runtime.block_on(pending.ready());
    }
    Ok(match (tenants.need_keys(), tenants.key_count()) {
        (false, _) => "no API keys".to_owned(),
        (true, 1) => "1 API key".to_owned(),
        (true, count) => format!("{count} API keys"),
    })
}

/// Every setting as a line of TOML; those with their default are comments. A default in words becomes a
/// placeholder, so that each of these is TOML without its `# `.
fn listing(settings: &Settings) -> String {
    let mut out = String::new();
    for setting in SETTINGS {
        let line = match settings.get(setting.key) {
            None if setting.worded => {
                let placeholder = toml::Value::String(setting.value.to_owned());
                format!("# {} = {placeholder}  # default: {}", setting.key, setting.default)
            }
            None => format!("# {} = {}", setting.key, literal(setting, setting.default)),
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
        // A flag accepts `0080` and `+80` as numbers; TOML does not.
        _ if text.parse::<i64>().is_ok_and(|number| number.to_string() == text) => text.to_owned(),
        _ if text.contains('.') && text.parse::<f64>().is_ok_and(|number| number.to_string() == text) => {
            text.to_owned()
        }
        _ => toml::Value::String(text.to_owned()).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Environment;

    #[test]
    fn printed_settings_read_back_as_the_same_settings() {
        let flags = [
            ("port", "9".to_owned()),
            ("kv-memory", "2GiB".to_owned()),
            ("prefix-caching", "off".to_owned()),
            ("seed", "0080".to_owned()),
            ("max-waiting-requests", "+5".to_owned()),
            ("model", "true".to_owned()),
            ("kv-events-topic", "18446744073709551615".to_owned()),
            ("gpu-memory-utilization", "0.5".to_owned()),
            ("served-model-name", "1.50".to_owned()),
        ];
        let empty = tempfile::NamedTempFile::new().unwrap();
        let before = Settings::gather(&flags.into(), &Environment::default(), Some(empty.path())).unwrap();
        let text = listing(&before);
        assert!(text.contains("port = 9  # --port\n") && text.contains("\n# block-size = 16\n"), "{text}");
        std::fs::write(empty.path(), &text).unwrap();
        let after =
            Settings::gather(&Default::default(), &Environment::default(), Some(empty.path())).unwrap();
        for setting in SETTINGS {
            assert_eq!(
                after.get(setting.key).map(|v| v.1),
                before.get(setting.key).map(|v| v.1),
                "{}",
                setting.key
            );
        }
    }

    #[test]
    fn uncommented_settings_are_valid_and_mean_their_defaults() {
        let text = listing(&Settings::default());
        let line = |setting: &Setting| {
            let start = format!("# {} = ", setting.key);
            let line = text.lines().find(|line| line.starts_with(&start)).expect("every setting is listed");
            line.trim_start_matches("# ").to_owned() + "\n"
        };
        let read = |lines: String| Settings::of_text(Path::new("infer.toml"), &lines).unwrap();
        let all = read(SETTINGS.iter().map(line).collect());
        assert!(SETTINGS.iter().all(|setting| all.get(setting.key).is_some()), "{text}");
        let defaults = read(SETTINGS.iter().filter(|setting| !setting.worded).map(line).collect());
        let config = Config { admission_chosen: false, ..Config::from_settings(&defaults).unwrap() };
        assert_eq!(format!("{config:#?}"), format!("{:#?}", Config::default()));
    }
}
