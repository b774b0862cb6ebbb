//! `exeat audit learn`: prints the smallest policy that covers what was let through in some records.

use exeat_audit::learn::{Known, Learned};
use exeat_record::today;

use crate::args::audit::LearnedArgs;
use crate::commands::learn::{give_way, output_at};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::stdio;

/// Prints the policy, or writes it to a file.
pub(crate) fn run(args: &LearnedArgs) -> Result<Exit, Failure> {
    let file = args.output.as_deref().map(|path| output_at(path, args.force)).transpose()?;
    let (summary, exit) = super::summarize(&args.records)?;
    super::note_signature();
    let known = Known { policy: None, host_ports: &[], denied: args.denied, today: today() };
    let text = Learned::new(&summary)
        .policy_file(&known)
        .map_err(|error| Failure::could("cannot learn").because(error))?;
    match file {
        None => stdio::data(text.as_bytes())?,
        Some(file) => {
            give_way(&file);
            file.write(0o666, |out| out.write_all(text.as_bytes()))
                .map_err(|error| Failure::could("cannot write the learned policy").because(error))?;
        }
    }
    Ok(exit)
}
