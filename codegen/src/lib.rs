//! autoshard-codegen
