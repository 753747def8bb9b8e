//! The data path alone: observers, stores, links and a dice that decides about every single step.

pub mod app;
pub mod world;
