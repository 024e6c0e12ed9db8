//! The flags of `infer serve`, and the model flags of other commands, generated from the table of settings.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches};

use crate::admin;
use crate::config::{Config, ConfigError, Environment, SETTINGS, Setting, Settings, environment_name};
use crate::tenants;

/// Settings from the command line: all of them with `SERVE`, otherwise those of the model.
#[derive(Clone, Debug, Default)]
pub struct Flags<const SERVE: bool> {
    given: BTreeMap<&'static str, String>,
    file: Option<PathBuf>,
}

impl<const SERVE: bool> Flags<SERVE> {
    /// The configuration from these flags, the environment and the file.
    pub fn config(&self) -> Result<Config, ConfigError> {
        Ok(self.config_and_settings()?.0)
    }

    /// The configuration, and the settings that say where each part of it was given.
    pub fn config_and_settings(&self) -> Result<(Config, Settings), ConfigError> {
        let environment = Environment::of_process();
        let secret = |name| environment.get(name).map(|value| value.map(str::to_owned));
        let (admin_token, api_key) = (secret(admin::token::VARIABLE)?, secret(tenants::VARIABLE)?);
        let settings = self.merged(&environment)?;
        Ok((Config { admin_token, api_key, ..Config::from_settings(&settings)? }, settings))
    }

    /// The settings from these flags, the environment and the file, as text.
    pub fn settings(&self) -> Result<Settings, ConfigError> {
        self.merged(&Environment::of_process())
    }

    /// The settings from these flags, the environment and the file, for clients of a host that runs with them.
    pub fn settings_of_running(&self) -> Result<Settings, ConfigError> {
        Settings::of_running(&self.given, &Environment::of_process(), self.file.as_deref())
    }

    /// Flags that are in a file alone, or in none.
    pub fn of_file(file: Option<PathBuf>) -> Self {
        Self { given: BTreeMap::new(), file }
    }

    /// Whether the command line itself has this flag.
    pub fn has(&self, key: &str) -> bool {
        self.given.contains_key(key)
    }

    fn merged(&self, environment: &Environment) -> Result<Settings, ConfigError> {
        Settings::gather(&self.given, environment, self.file.as_deref())
    }

    fn table() -> impl Iterator<Item = &'static Setting> {
        SETTINGS.iter().filter(|s| SERVE || s.generate)
    }
}

impl<const SERVE: bool> FromArgMatches for Flags<SERVE> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut all = Self::default();
        all.update_from_arg_matches(matches)?;
        Ok(all)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in Self::table() {
            if let Some(values) = matches.get_many::<String>(setting.key) {
                let values: Vec<&str> = values.map(String::as_str).collect();
                self.given.insert(setting.key, values.join(","));
            }
        }
        self.file = matches.get_one::<PathBuf>("config").cloned().or(self.file.take());
        Ok(())
    }
}

impl<const SERVE: bool> Args for Flags<SERVE> {
    fn augment_args(mut command: clap::Command) -> clap::Command {
        for setting in Self::table() {
            let help = format!(
                "{} [default: {}] [env: {}]",
                setting.help,
                setting.default,
                environment_name(setting.key)
            );
            let mut arg = Arg::new(setting.key).long(setting.key).value_name(setting.value).help(help);
            if setting.switch {
                arg = arg.num_args(0..=1).default_missing_value("on");
            }
            if setting.repeats {
                arg = arg.action(ArgAction::Append);
            }
            command = command.arg(arg);
        }
        command.arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .value_parser(clap::value_parser!(PathBuf))
                .help("TOML file with the same keys as these flags [default: infer.toml if it exists] [env: INFER_CONFIG]"),
        )
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_repeated_flag_are_a_list() {
        let command = Flags::<true>::augment_args(clap::Command::new("serve"));
        let line = ["serve", "--lora", "a=x", "--port", "5", "--lora", "b=y,c=z", "--show-text"];
        let flags = Flags::<true>::from_arg_matches(&command.try_get_matches_from(line).unwrap()).unwrap();
        let given = |key: &str| flags.given.get(key).map(String::as_str);
        assert_eq!(
            (given("lora"), given("port"), given("show-text")),
            (Some("a=x,b=y,c=z"), Some("5"), Some("on"))
        );
    }
}
