//! `perimeter lab calibrate` and `perimeter lab predict`.

use crate::progress;
use perimeter::OrgSpec;
use perimeter_command::{
    build, check_writable,
    lab::{Calibrate, Predict, Published},
    print, write_whole,
};
use perimeter_lab::{
    plan::{Mode, Plan},
    predict::{
        self, Effort, Instead, Machine, Made, OneCore, Predictions, Question, Time, loads::Load,
    },
};
use perimeter_measure::{Error, bench::recommend::Prediction};
use std::{
    io::{self, Write as _},
    path::Path,
};

/// The machine that is of this one's kind.
const LIKE: &str = "vm-2core";

fn say(line: &str) {
    // Who reads standard error may have gone.
    let _ = writeln!(io::stderr(), "{line}");
}

/// Does what was asked for.
pub fn calibrate(args: &Calibrate) -> Result<(), Error> {
    if let Some(out) = &args.out {
        check_writable("--out", out)?;
    }
    let like = Machine::find(&args.like)?;
    let machine = match args.to {
        Some(Published(few, many)) => {
            let scheduling = args.scheduling;
            let published = OneCore {
                few,
                many,
                scheduling,
            };
            predict::scale(&like, published)?
        }
        None if args.refit => {
            let mut machine = like;
            predict::refit(&mut machine, &mut |line| say(line))?;
            machine
        }
        None if args.lines => {
            let mut machine = like;
            machine.each.extend(predict::lines(&mut |line| say(line))?);
            machine
        }
        None => {
            let time = match args.quick {
                true => Time::QUICK,
                false => Time::USUAL,
            };
            predict::calibrate(&like, time, &mut |line| say(line))?
        }
    };
    let text = machine.text()?;
    match &args.out {
        Some(out) => write_whole(out, &text),
        None => print(&text),
    }
}

/// Does what was asked for; 1 if the table does not hold for a load of the plans.
pub fn predict(args: &Predict, find: impl Fn(&str) -> Result<Plan, Error>) -> Result<u8, Error> {
    let plans = match args.plan.as_str() {
        "all" => perimeter_lab::plan::embedded(),
        name => vec![find(name)?],
    };
    if let Some(file) = args.json.as_deref().filter(|f| *f != Path::new("-")) {
        check_writable("--json", file)?;
    }
    let instead = Instead {
        nics: args.nics,
        inbound: args.inbound,
    };
    let machine = Machine::find(&args.machine)?.with(instead);
    let mut list = args.cores.clone().unwrap_or_else(|| usual(machine.cores));
    list.sort_unstable();
    list.dedup();
    let effort = match args.quick {
        true => Effort::QUICK,
        false => Effort::USUAL,
    };
    say(&format!("{}: validating", machine.name));
    let validation = predict::validate(&machine, if args.quick { 1 } else { args.seeds }, effort)?;
    let question = Question {
        machine,
        cores: list,
        mode: match args.quick {
            true => Mode::Quick,
            false => Mode::Normal,
        },
        seeds: if args.quick { 1 } else { args.seeds },
        band: !args.quick,
        effort,
        made: Made::default(),
    };
    let mut text = validation.to_string();
    let mut figures = Vec::new();
    say(&format!("{}: predicting", question.machine.name));
    let bar = progress::bar();
    bar.set_message("points");
    predict::run_all(&plans, &question, |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    })?;
    bar.finish_and_clear();
    for plan in &plans {
        let figure = predict::predict(plan, &question, &validation)?;
        // A plan of which nothing can be predicted says so once, by its points.
        text.push_str(&format!("\n{figure}"));
        figures.push(figure);
    }
    let fails = figures.iter().any(|f| !f.caveats.is_empty());
    if let Some(file) = &args.json {
        let whole = Predictions {
            schema: predict::SCHEMA.into(),
            build: build(),
            machine: question.machine,
            cores: question.cores,
            seeds: question.seeds,
            validation,
            figures,
        };
        let whole = whole.text()?;
        match file.as_path() == Path::new("-") {
            true => print(&whole)?,
            false => {
                write_whole(file, &whole)?;
                print(&text)?;
            }
        }
    } else {
        print(&text)?;
    }
    Ok(u8::from(fails))
}

/// Prints as JSON what is predicted for `cores` cores.
pub fn advise(candidates: &[OrgSpec], cores: usize) -> Result<(), Error> {
    let found = for_more_cores(candidates, cores)?;
    let text = serde_json::to_string(&found).map_err(|e| Error::Run(e.to_string()))?;
    print(&(text + "\n"))
}

/// What is predicted for `cores` cores, with the costs of the machine that is like this one.
fn for_more_cores(candidates: &[OrgSpec], cores: usize) -> Result<Prediction, Error> {
    let machine = Machine::find(LIKE)?;
    let here = perimeter_measure::host::cores();
    // Those with as many perimeters as there are cores have as many there.
    let there = |org: &OrgSpec| {
        let name = org.to_string();
        match name.strip_suffix(&format!(":{here}")) {
            Some(family) => format!("{family}:{cores}"),
            None => name,
        }
    };
    let all: Vec<String> = candidates.iter().map(there).collect();
    let advice = predict::advise(&machine, cores, &all)?;
    let said = advice.iter().map(|a| match &a.best {
        Ok((best, lead, next)) => format!("for {} {best}, {lead:.2} × {next}", words(a.load)),
        Err(why) => format!("for {} nothing, as {why}", words(a.load)),
    });
    Ok(Prediction {
        cores,
        machine: machine.title.clone(),
        said: said.collect(),
    })
}

fn words(load: Load) -> &'static str {
    match load {
        Load::Send => "sending",
        Load::Receive => "receiving",
        Load::Messages => "messages",
    }
}

/// Powers of two up to `most`, and that.
fn usual(most: usize) -> Vec<usize> {
    let powers = (0..).map(|n| 1usize << n).take_while(|n| *n < most);
    powers.chain([most]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_cores() {
        assert_eq!(usual(1), [1]);
        assert_eq!(usual(4), [1, 2, 4]);
        assert_eq!(usual(6), [1, 2, 4, 6]);
    }
}
