package helpers // want: folder helpers has no place in the house
