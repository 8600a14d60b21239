# sluice_test(folder name [more sources])
sluice_test(unit test_math64)
