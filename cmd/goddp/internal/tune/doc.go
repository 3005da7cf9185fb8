// Package tune compares settings of a library with its defaults, and says which of them to set. It
// implements "goddp tune".
//
// A library such as NCCL reads its settings from the environment when it is loaded, so each run is a new
// process on every rank. [Run] runs each setting beside the default several times, and a [Result] has the
// ratios of their times. A pair of runs is made in a few seconds, so what changes more slowly on the hosts
// changes both. One of the settings is the default itself, and its ratios are the noise: a setting is faster
// at a size if it is so in each pair by more than the default ever differs from itself, and by five percent at
// the median.
package tune
