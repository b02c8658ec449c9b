package server

import "fmt"

// SettingsError is a mistake in the settings.
type SettingsError struct{ error }

func (e SettingsError) Unwrap() error { return e.error }

func settingsf(format string, args ...any) error {
	return SettingsError{fmt.Errorf(format, args...)}
}

// DirectoryError is about a data directory that is an old copy, not of the cluster that it is
// started in, or no longer a member of it. Starting it again does not help.
type DirectoryError struct{ error }

func (e DirectoryError) Unwrap() error { return e.error }

func directoryf(format string, args ...any) error {
	return DirectoryError{fmt.Errorf(format, args...)}
}
