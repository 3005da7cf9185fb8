// Package timeline reads the traces that package profile writes and says what the GPU of each rank did in
// them: how long it computed and communicated, how much of the communication no computation hid, and what
// held it up in its longest gaps.
package timeline
