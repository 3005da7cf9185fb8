// Package jobenv is what a launcher and its workers tell each other: by the environment, and by the file
// of a worker's [StopState].
package jobenv
