// Package jobenv is what a launcher and its workers tell each other: by the environment, by the file
// of a worker's [StopState], and by its [ErrorFile].
package jobenv
