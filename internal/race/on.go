//go:build race

// Package race says whether this binary was built with the race detector. Tests that compute much in
// one goroutine, where the detector finds nothing, compute less under it.
package race

// Enabled is whether the race detector is on.
const Enabled = true
