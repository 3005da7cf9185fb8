// Package timeline reads the traces that package profile writes and says what the GPU of each rank did. It
// reports how long the GPU computed and communicated, how much of the communication no computation hid, and
// what the GPU waited for in its longest gaps.
package timeline
