// Package tune compares settings of a library with its defaults, and says which of them to set. It
// implements "goddp tune".
//
// A library such as NCCL reads its settings from the environment when it is loaded, so each run is a new
// process on every rank. [Run] runs each setting in several pairs with the default, and a [Result] has the
// ratios of their times. A pair takes a few seconds, so slower changes on the hosts affect both of its runs.
// The default is also compared with itself, and these ratios are the noise. A setting counts as faster at a
// size on two conditions: it is faster in each pair, by more than the default ever differs from itself, and
// its median is at least five percent faster.
package tune
