// Package smoke holds the few jobs of real processes that every run of the tests starts: golaunch, and ranks that train
// by goddp's packages. What else jobs do is tested by the packages' own tests, most of them with -long.
package smoke
