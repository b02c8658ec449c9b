package main

import "time"

// wall is the wall clock; a build with the tag qlogdtest can bend it.
var wall = time.Now
