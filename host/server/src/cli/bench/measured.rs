//! Flags that `infer bench engine` and `infer bench kernels` share: what to measure, and how to print it.

use clap::{Args, ValueEnum};
use infer_model::WeightType;
use infer_model::shapes::{SHAPES, Shape};
use serde::Serialize;

use super::Failure;
use crate::bench::Machine;
use crate::startup::device::{DeviceChoice, Measurement};

/// Measured unless `--shape` is given.
const DEFAULT: [&str; 2] = ["smollm-135m", "llama-1b"];

/// Flags of both commands.
#[derive(Args)]
pub struct Measured {
    /// Shapes to measure [default: smollm-135m and llama-1b; see below for a GPU]
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(SHAPES.map(|shape| shape.name)))]
    shape: Vec<String>,
    /// Storage type of the weights; q8 and q4 are integers with a scale per 32 [default: bf16, q8 and q4; on a GPU bf16]
    #[arg(long, value_enum, value_name = "TYPE")]
    weights: Vec<Weights>,
    /// Compute threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_024))]
    threads: Option<u16>,
    /// Format of the report; of a GPU's, JSON is an object per line
    #[arg(long, value_enum, default_value_t = Output::Text)]
    format: Output,
    /// `cpu`, or a GPU (`cuda`, `cuda:N`), which has measurements of its own
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = named_device)]
    device: DeviceChoice,
    /// On a GPU, measure fewer batches and lengths
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Weights {
    F32,
    Bf16,
    Q8,
    Q4,
    Mxfp4,
}

impl Weights {
    fn kind(self) -> WeightType {
        match self {
            Self::F32 => WeightType::F32,
            Self::Bf16 => WeightType::Bf16,
            Self::Q8 => WeightType::Q8,
            Self::Q4 => WeightType::Q4,
            Self::Mxfp4 => WeightType::Mxfp4,
        }
    }
}

impl Measured {
    /// Calls `measure` if `--device` names a GPU; else returns false. `more` are the command's other flags, and whether they
    /// are given: a GPU's measurements have no use for them.
    pub(super) fn on_gpu(
        &self,
        more: &[(&str, bool)],
        measure: fn(&Measurement) -> Result<(), String>,
    ) -> Result<bool, Failure> {
        let usage = |text: String| Err(Failure::Usage(text));
        let DeviceChoice::Cuda(index) = self.device else {
            return match self.quick {
                true => usage("--quick: only for a GPU; leave it out, or use --device cuda".to_owned()),
                false => Ok(false),
            };
        };
        let own = [("--threads", self.threads.is_some())];
        if let Some((flag, _)) = own.iter().chain(more).find(|(_, given)| *given) {
            return usage(format!(
                "{flag}: has no meaning on a GPU, whose measurements take --shape, --quick and --format, of whole steps also \
                 --weights; leave it out, or use --device cpu"
            ));
        }
        if self.weights.contains(&Weights::Mxfp4) {
            return usage(
                "--weights: mxfp4 becomes bf16 on a GPU; measure that, or use --device cpu".to_owned(),
            );
        }
        let shapes = match self.shape.is_empty() {
            true => Vec::new(),
            false => self.shapes(),
        };
        crate::log::start("info")?;
        let json = self.format == Output::Json;
        let weights = self.weights.iter().map(|weights| weights.kind()).collect();
        measure(&Measurement { index, shapes, weights, quick: self.quick, json }).map_err(Failure::Failed)?;
        Ok(true)
    }

    pub(super) fn shapes(&self) -> Vec<Shape> {
        let wanted = |shape: &Shape| match self.shape.is_empty() {
            true => DEFAULT.contains(&shape.name),
            false => self.shape.iter().any(|name| name == shape.name),
        };
        SHAPES.into_iter().filter(wanted).collect()
    }

    pub(super) fn weights(&self) -> Vec<WeightType> {
        let named: &[Weights] =
            if self.weights.is_empty() { &[Weights::Bf16, Weights::Q8, Weights::Q4] } else { &self.weights };
        named.iter().map(|weights| weights.kind()).collect()
    }

    /// Whether types of weights are named.
    pub(super) fn names_weights(&self) -> bool {
        !self.weights.is_empty()
    }

    pub(super) fn threads(&self) -> usize {
        self.threads.map_or_else(|| Machine::here().cores, usize::from)
    }

    /// Prints a report to stdout.
    pub(super) fn print<T: Serialize>(&self, report: &T, text: fn(&T) -> String) -> Result<(), Failure> {
        match self.format {
            Output::Text => print!("{}", text(report)),
            Output::Json => println!("{}", serde_json::to_string_pretty(report).map_err(Failure::failed)?),
        }
        Ok(())
    }
}

/// Refuses `auto`: a figure is worth nothing unless the caller knows which device it is of.
fn named_device(text: &str) -> Result<DeviceChoice, String> {
    match DeviceChoice::parse(text) {
        Ok(DeviceChoice::Auto) | Err(_) => Err(format!("`{text}` is not one of `cpu`, `cuda`, `cuda:N`")),
        named => named,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::bench::BenchCommand;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: BenchCommand,
    }

    /// How a command fails.
    fn fails(line: &str) -> Failure {
        let line =
            Line::try_parse_from(["bench"].into_iter().chain(line.split(' '))).expect("flags that exist");
        crate::cli::bench::run(line.command).expect_err("it is refused, or there is no such GPU")
    }

    #[test]
    fn flags_without_a_meaning_on_a_gpu_are_refused_by_name() {
        for command in ["kernels", "engine"] {
            for flag in ["--weights mxfp4", "--threads 2"] {
                assert!(refused(&format!("{command} --device cuda:99 {flag}"), flag), "{command} {flag}");
            }
        }
        assert!(refused("kernels --device cuda:99 --weights q8", "--weights"));
        for flag in ["--context 128", "--steps 16", "--passes 3", "--neighbours 0"] {
            assert!(
                refused(&format!("engine --device cuda {flag}"), flag),
                "even if it is the default: {flag}"
            );
        }
        assert!(refused("kernels --quick --shape demo", "--quick"));
        // These get as far as the GPU.
        for command in ["kernels", "engine", "engine --weights q4"] {
            let failure = fails(&format!("{command} --device cuda:99 --shape demo --quick --format json"));
            assert!(matches!(failure, Failure::Failed(_)), "{command}");
        }
    }

    /// Whether a command line is refused for this flag.
    fn refused(line: &str, flag: &str) -> bool {
        let name = flag.split(' ').next().expect("a name");
        matches!(fails(line), Failure::Usage(text) if text.starts_with(&format!("{name}: ")))
    }

    #[test]
    fn gpu_is_told_the_named_shapes_alone() {
        static TOLD: std::sync::Mutex<Vec<Measurement>> = std::sync::Mutex::new(Vec::new());
        fn measure(what: &Measurement) -> Result<(), String> {
            TOLD.lock().unwrap().push(what.clone());
            Ok(())
        }
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            measured: Measured,
        }
        for line in [
            "bench --device cuda:3",
            "bench --device cuda --format json --quick --shape llama-1b --weights q8",
        ] {
            let line = Line::try_parse_from(line.split(' ')).expect("flags that exist");
            assert!(matches!(line.measured.on_gpu(&[], measure), Ok(true)));
        }
        let named = Shape::named("llama-1b").expect("a shape");
        let wanted = [
            Measurement { index: 3, shapes: Vec::new(), weights: Vec::new(), quick: false, json: false },
            Measurement {
                index: 0,
                shapes: vec![named],
                weights: vec![WeightType::Q8],
                quick: true,
                json: true,
            },
        ];
        assert_eq!(*TOLD.lock().unwrap(), wanted);
        let cpu = Line::try_parse_from(["bench"]).expect("no flags");
        assert!(matches!(cpu.measured.on_gpu(&[("--context", true)], measure), Ok(false)));
    }
}
