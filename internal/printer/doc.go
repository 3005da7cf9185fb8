// Package printer writes lines to a process's stdout and stderr, and lets nobody wait long for their readers. A reader may
// stop: the user holds the terminal (Ctrl-S), leaves a pager, or the process behind a pipe hangs.
//
// Each output has a queue of a limited size, which a goroutine writes. While the queue is full, [Output.Write] waits as long
// as the output takes lines, so a reader that is merely slow gets all lines. An output that takes no line for [Patience] is
// blocked: further lines for it are dropped until it takes lines again. A line on stderr then says how many were dropped.
//
// If stdout and stderr are different files, each has a queue, and an output that is blocked does not delay the other.
// Otherwise they share a queue, which keeps the order of all lines and makes one write at a time.
package printer
