"""The network. A capital letter at the end of an array's name is an axis, the same in every file; as a type, "B T D".

B  rows of a batch on this device            T  positions of a row
N  tokens on this device, B T                V  vocabulary
D  d_model                                   F  d_ff, this device's share of it
H  heads of queries on this device           K  head size
P  heads of keys and values on this device   W  heads of queries that share one of those, H / P
E  experts                                   X  devices on the expert axis
G  groups of tokens that share a capacity    S  tokens of a group
J  choices of a group: the first choices of its S tokens, then their second choices, ...
C  capacity: slots of one expert in a group  L  slots of all experts in a group, E C
Q  queries worked on at once                 U  positions of a block of keys
R  rows times heads of keys and values       Z  pieces that are worked on one after another
A  choices of a token
I, O, Y  defined in the file that uses them
"""
