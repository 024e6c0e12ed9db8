//! What a policy author sees.
