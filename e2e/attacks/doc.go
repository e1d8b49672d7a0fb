// Package attacks attacks the real binaries on a real engine: as a hostile
// repository, as a hostile sandbox, and as a hostile neighbour on the host.
// There is at least one test per row of ATTACKS.md, which numbers the attacks.
//
// The tests print a table. They act as several users, so they need root, and what
// "make images build" makes.
package attacks
