//! `radicd`: the program around [`radic_protector`].
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use radic_protector::config::{Config, ConfigError, LogFormat, Settings};
use radic_protector::daemon;
use radic_wire::key::ClusterKey;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|argument| argument == daemon::keeper::ARGUMENT) {
        daemon::keeper::run(&arguments.next().unwrap_or_default().to_string_lossy());
        return ExitCode::SUCCESS;
    }
    if std::env::args_os().nth(1).is_some_and(|argument| argument == daemon::faults::ARGUMENT) {
        let words: Vec<_> = std::env::args_os().skip(2).map(|word| word.to_string_lossy().into_owned()).collect();
        return daemon::faults::run(&words).map_or_else(|error| fail(&error), |()| ExitCode::SUCCESS);
    }
    let command = Settings::command().version(radic_version::SHORT).long_version(radic_version::long());
    let settings = Settings::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    let check = settings.check_config;
    let config = match settings.with_file().and_then(Settings::complete) {
        Ok(config) => config,
        Err(error) => return fail(&error),
    };
    if check { check_config(&config) } else { run(config) }
}

/// Prints the settings in force, and whether the daemon could start with them.
fn check_config(config: &Config) -> ExitCode {
    match config.to_toml() {
        Ok(text) => print!("{text}"),
        Err(error) => return fail(&error),
    }
    match ClusterKey::load(&config.key, nix::unistd::geteuid().as_raw()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn run(mut config: Config) -> ExitCode {
    if config.own_session
        && let Err(error) = nix::unistd::setsid()
    {
        return fail(&ConfigError::Missing { what: "a session of its own", remedy: error.to_string() });
    }
    start_log(&config);
    if let Err(error) = start_web(&mut config) {
        return fail(&error);
    }
    match daemon::run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("{error:#}")),
    }
}

/// The page and the metrics, if they are wanted. From now on the configuration names the address that was got.
fn start_web(config: &mut Config) -> Result<(), Box<dyn std::error::Error>> {
    let Some(address) = config.http else { return Ok(()) };
    let key = ClusterKey::load(&config.key, nix::unistd::geteuid().as_raw())?;
    let (listener, address) = radic_web::bind(address)?;
    config.http = Some(address);
    tracing::info!(%address, "a page and metrics are served; `radic web` makes a token for them");
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "what the page and the metrics say is not encrypted on the network");
    }
    let settings =
        radic_web::Settings { node_dir: config.node_dir(), store: config.store.clone(), key, interval: radic_web::INTERVAL };
    radic_web::start(listener, settings)?;
    Ok(())
}

fn start_log(config: &Config) {
    // The configuration has only names of levels.
    let level = config.log_level.parse().unwrap_or(LevelFilter::INFO);
    let ours = Targets::new().with_targets([("radic_protector", level), ("radicd", level)]);
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let registry = tracing_subscriber::registry();
    match config.log_format {
        LogFormat::Text => registry.with(log.with_ansi(false).with_filter(ours)).init(),
        LogFormat::Json => registry.with(log.json().flatten_event(true).with_filter(ours)).init(),
    }
}

fn fail(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("radicd: {error}");
    ExitCode::FAILURE
}
