//! Every arrow of the state machine on a real Redis: all keys of the namespace before and after, legal and illegal.
//!
//! One module per arrow. [`table`] tells how keys become lines of text. [`model`] goes on where tables end: random arrows, and
//! invariants after each. Whatever a key map shows that a test does not name makes it fail.

mod cancel;
mod claim;
mod corrupt;
mod delete;
mod edit;
mod enqueue;
mod fetch;
mod full;
mod inspect;
mod lease;
mod life;
mod model;
mod nodes;
mod note;
mod pause;
mod picture;
mod promote;
mod reap;
mod repair;
mod requeue;
mod settle;
mod states;
mod sweep;
mod table;
mod trim;
